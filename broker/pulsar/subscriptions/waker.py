"""Goes on with subscriptions outside of the processors: the body of the thread ``pulsar-waker``.

A dispatcher's turn takes up to a few milliseconds. Where one append wakes thousands of subscriptions, where a subscription has
more to send than one turn may, and where a timer is due, the turns are taken here, one after the other. The processors only get
the frames. What is put in must not block.

Any thread may call ``call``.
"""

from collections.abc import Callable

from broker.log import get_logger
from broker.runtime.threads import QueueEmpty, SimpleQueue

log = get_logger("pulsar")

Work = Callable[[], object]


class Waker:
    def __init__(self) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()

    def call(self, work: Work) -> None:
        """Call this soon, after all that was handed in before."""
        self._queue.put(work)

    def step(self, timeout: float | None) -> bool:
        try:
            work = self._queue.get(timeout != 0, timeout)
        except QueueEmpty:
            return False
        if work is None:
            return False
        try:
            work()
        except Exception as error:  # one subscription must not stop the others
            log.error("subscription_failed", exc_info=error)
        return True

    def wakeup(self) -> None:
        self._queue.put(None)
