"""Creates the topics that clients ask for by their metadata (``auto_create_topics_enable``).

Creating a topic takes milliseconds of the disk, so a request with many names would keep a handler busy for minutes. The topic
maker's own thread creates them instead, one name of each waiting request in turn: a request for one topic waits for one topic of
each other request, not for all of theirs. Requests of disconnected clients are dropped.

``TopicMaker.make`` may be called from any thread; everything else runs on the topic maker's thread.
"""

from collections.abc import Callable, Iterable

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.error_codes import code_of
from broker.log import get_logger
from broker.runtime.threads import Lock
from broker.runtime.worker import Worker
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode

log = get_logger("kafka")

# How many topics of a request are created. For the rest the client is told to ask again, as Kafka tells it for all.
NAMES_MAX = 100
# How many requests may wait.
JOBS_MAX = 100

# Error codes of the topics that could not be created, by name.
Failures = dict[str, int]


@attrs.define(eq=False)
class _Job:
    names: list[str]  # still to be created, the next one last
    wanted: Callable[[], bool]
    done: Callable[[Failures], None]
    failures: Failures = attrs.Factory(dict)


class TopicMaker(Worker[_Job]):
    """The body of the maker's thread."""

    def __init__(self, logs: LogManager) -> None:
        super().__init__(self._work)
        self._logs = logs
        self._lock = Lock()
        self._jobs = 0

    @property
    def waiting(self) -> int:
        """How many requests wait, including the one that the thread works on."""
        return self._jobs

    def make(self, names: Iterable[str], wanted: Callable[[], bool], done: Callable[[Failures], None]) -> bool:
        """Create the topics that do not exist, with the default settings. False: too many requests wait already.

        The topic maker's thread calls ``wanted`` before each topic, and drops the request when that returns False. Otherwise it
        calls ``done`` at the end.
        """
        with self._lock:
            if self._jobs >= JOBS_MAX:
                return False
            self._jobs += 1
        self.submit(_Job(list(names)[::-1], wanted, done))
        return True

    def _work(self, job: _Job) -> None:
        wanted = job.wanted()
        if wanted and job.names:
            self._make(job.names.pop(), job.failures)
            if job.names:
                self.submit(job)
                return
        try:
            if wanted:
                job.done(job.failures)
        finally:
            with self._lock:
                self._jobs -= 1

    def _make(self, name: str, failures: Failures) -> None:
        if self._logs.topic(name) is not None:
            return  # created meanwhile by another request
        try:
            self._logs.create_topic(name)
        except Refusal as error:
            failures[name] = code_of(error)
        except StorageError as error:
            if not self._logs.makes_no_more:  # else nothing is wrong
                log.error("topic_creation_failed", topic=name, error=str(error))
            failures[name] = ErrorCode.kafka_storage_error
