"""Relief for a processor whose thread waits in an append to a disk that does not get on: another thread goes on in its place.

An append to the page cache takes microseconds, so processors make them themselves. A disk that hangs, or that throttles its
writers, may keep one for seconds or for ever, and with it everything that the processor serves. A ``Watch`` therefore looks at
the processors now and then. A processor that was at the same request at two looks gets a new thread, which serves all its
connections but the one with that request. The old thread goes on with the request as a handler would, and ends.

Only a request that ``may_wait`` can be left behind in this way, because handlers can handle it as well. While a thread handles
one it has the processor's ``Seat`` (``receiving.py``) free. That is the whole protocol:

- The thread publishes the request in the seat and releases ``lock``. It takes the lock again after the request, and for each
  answer on the way that changes the processor.
- Who relieves it takes the lock, sets ``relieved``, gives the processor another seat and another thread, and releases the lock.
- A thread that then finds ``relieved`` touches the processor only through its inbox, as any other thread.

The connection has the hold RELIEVED until the old thread has said, through the inbox, how far it has come (``Rest``).

``Watch`` is a thread of its own for each plane; the rest runs where it says.

Tests: tests/network/test_relief.py.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from broker.log import get_logger
from broker.network.connection import ProcessorConnection
from broker.network.receiving import Seat
from broker.network.service import Request
from broker.runtime.worker import Inbox

log = get_logger("network")

# Time (s) between two looks: a processor that is stuck is relieved after one to two of them.
LOOK_S = 0.5
# Threads of a plane that may be left behind at a time. With so many, nothing is relieved any more.
LEFT_MAX = 16


class Relievable(Protocol):
    """A processor."""

    @property
    def seat(self) -> Seat | None: ...


class Watch:
    """The body of a thread that finds processors that are stuck."""

    def __init__(
        self,
        processors: Callable[[], Iterable[Relievable]],
        relieve: Callable[[Relievable, Request], bool],
    ) -> None:
        """``relieve`` has another thread go on in the processor's place, if it is still at this request: then True."""
        self._processors = processors
        self._relieve = relieve
        self._seen: dict[Relievable, Request] = {}  # what each was at
        self._left: list[Request] = []  # that relieved threads are handling
        self._inbox: Inbox[None] = Inbox()

    def step(self, timeout: float | None) -> bool:
        self._inbox.take(LOOK_S if timeout is None else min(timeout, LOOK_S))
        self.look()
        return True

    def wakeup(self) -> None:
        self._inbox.wakeup()

    def look(self) -> None:
        self._left = [request for request in self._left if not request.done]
        seen: dict[Relievable, Request] = {}
        for processor in self._processors():
            seat = processor.seat
            request = None if seat is None else seat.request
            if request is None:
                continue
            if request is not self._seen.get(processor):
                seen[processor] = request
                continue
            _tell(request)
            if len(self._left) < LEFT_MAX and self._relieve(processor, request):
                self._left.append(request)
                log.warning("processor_relieved", request=request.kind, left=len(self._left))
        self._seen = seen
        for request in self._left:
            _tell(request)


def _tell(request: Request) -> None:
    connection: ProcessorConnection = request.connection  # type: ignore[assignment]
    connection.service.held_up()
