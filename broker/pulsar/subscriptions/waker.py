"""Runs the turns of subscriptions outside of the processors: the body of the thread ``pulsar-waker``.

A dispatcher's turn takes up to a few milliseconds. When an append wakes thousands of subscriptions, when a subscription has more
to send than fits in a turn, and when a timer is due, the turns run here, one after the other, and the processors only get the
frames. The work must not block.

Each topic has a *line*. The lines are served in turn, one piece of work each, so that a topic with thousands of subscriptions
delays other topics no more than a topic with a single subscription.

Any thread may call ``call``.
"""

from collections import deque
from collections.abc import Callable

from broker.log import get_logger
from broker.runtime.threads import Lock
from broker.runtime.worker import Worker

log = get_logger("pulsar")

Work = Callable[[], object]


class Line:
    """The work of a topic, in order. Guarded by the waker's lock. ``ready``: the line is in the waker's inbox."""

    __slots__ = ("_waker", "ready", "works")

    def __init__(self, waker: "Waker") -> None:
        self._waker = waker
        self.works: deque[Work] = deque()
        self.ready = False

    def call(self, work: Work) -> None:
        """Call ``work`` soon, after all earlier work of this line."""
        self._waker.put(self, work)


class Waker(Worker[Line]):
    """Its inbox contains the lines with work, each once."""

    def __init__(self) -> None:
        # A failure of one subscription must not stop the others.
        super().__init__(self._turn, lambda error: log.error("subscription_failed", exc_info=error))
        self._lock = Lock()

    def line(self) -> Line:
        """Make a new line."""
        return Line(self)

    def put(self, line: Line, work: Work) -> None:
        with self._lock:
            line.works.append(work)
            if line.ready:
                return
            line.ready = True
        self.submit(line)

    def _turn(self, line: Line) -> None:
        with self._lock:
            work = line.works.popleft()
            line.ready = bool(line.works)
            if line.ready:
                self.submit(line)
        work()
