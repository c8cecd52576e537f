"""Topics that are made because somebody asked for their metadata (``auto_create_topics_enable``).

A topic takes milliseconds of the disk, so that a request of many names would keep a handler for minutes. They are made here
instead, on a thread of their own, one name of each waiting request after the other: whoever asks for one topic waits behind one
topic of each of the others, not behind all of theirs. A request whose client has gone is dropped.

``TopicMaker.make`` may be called from any thread; all else happens on the maker's.
"""

from collections.abc import Callable, Iterable

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.error_codes import code_of
from broker.log import get_logger
from broker.runtime.threads import Lock, QueueEmpty, SimpleQueue
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode

log = get_logger("kafka")

# Names of one request that are made. The client is told to ask again for the rest, as Kafka tells it for all.
NAMES_MAX = 100
# Requests that may wait.
JOBS_MAX = 100

# Error codes of the names that could not be made.
Failures = dict[str, int]


@attrs.define(eq=False)
class _Job:
    names: list[str]  # still to be made, the first one last
    wanted: Callable[[], bool]
    done: Callable[[Failures], None]
    failures: Failures = attrs.Factory(dict)


class TopicMaker:
    """``Body`` of the maker's thread."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        self._jobs = 0

    @property
    def waiting(self) -> int:
        """Requests that wait, the one at hand included."""
        return self._jobs

    def make(self, names: Iterable[str], wanted: Callable[[], bool], done: Callable[[Failures], None]) -> bool:
        """Make these topics with the default settings, unless they are there. False: too many requests wait already.

        ``wanted`` is asked before each topic, on the maker's thread: after False from it nothing more happens. Else ``done`` is
        called there at the end.
        """
        with self._lock:
            if self._jobs >= JOBS_MAX:
                return False
            self._jobs += 1
        self._queue.put(_Job(list(names)[::-1], wanted, done))
        return True

    def step(self, timeout: float | None) -> bool:
        try:
            job = self._queue.get(timeout != 0, timeout)
        except QueueEmpty:
            return False
        if job is None:
            return False
        wanted = job.wanted()
        if wanted and job.names:
            self._make(job.names.pop(), job.failures)
            if job.names:
                self._queue.put(job)
                return True
        try:
            if wanted:
                job.done(job.failures)
        finally:
            with self._lock:
                self._jobs -= 1
        return True

    def wakeup(self) -> None:
        self._queue.put(None)

    def _make(self, name: str, failures: Failures) -> None:
        if self._logs.topic(name) is not None:
            return  # somebody else was faster
        try:
            self._logs.create_topic(name)
        except Refusal as error:
            failures[name] = code_of(error)
        except StorageError as error:
            log.error("topic_creation_failed", topic=name, error=str(error))
            failures[name] = ErrorCode.kafka_storage_error
