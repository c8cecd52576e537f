"""What groups have computed without their locks: target assignments and matches of regular expressions, on a thread of its own.

The cheapest task that waits is done first, but none is overtaken for longer than its own work is expected to take. A task that
runs holds up the others, and through the interpreter's lock everybody else. So a group gets the thread for at most a fifth of
the time, and all groups together for about half of it: a client that changes its subscription again and again costs no more.

``GroupWorker.submit`` may be called from any thread; everything else runs on the worker's thread.
"""

from collections.abc import Callable
from heapq import heappop, heappush

import attrs

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Event
from broker.runtime.timers import Timer
from broker.runtime.worker import Inbox

log = get_logger("groups")

# Expected work (s) of one unit of a task's cost.
_UNIT_S = 4e-6
# A group waits this many times what its last task took before its next one begins.
_GROUP_PAUSE = 4
# A pause for all groups is as long as what was done since the last one, and not longer than this (s).
_PAUSE_MAX_S = 0.1
# Work that is done without a pause (s).
_PAUSE_EVERY_S = 0.005


def pause(seconds: float) -> None:
    Event().wait(seconds)


@attrs.define(eq=False)
class Task:
    """``run`` is called until it returns True, with no lock held. ``done`` takes the result; both handle their own errors.

    ``key``: whose task it is. ``cost``: about how many units of 4 us it takes.
    """

    key: str
    cost: int
    run: Callable[[], bool]
    done: Callable[[], None]
    spent_s: float = 0.0


class GroupWorker:
    """``Body`` of the ``group-worker`` thread."""

    def __init__(self, clock: Clock, timer: Timer, pause: Callable[[float], object]) -> None:
        self._clock = clock
        self._timer = timer
        self._pause = pause
        self._inbox: Inbox[Task] = Inbox()
        self._heap: list[tuple[float, int, Task]] = []
        self._number = 0
        self._worked_s = 0.0
        # When the next task of a group may begin (monotonic s). Only of groups for which that is in the future.
        self._not_before: dict[str, float] = {}

    @property
    def waiting(self) -> int:
        """Tasks that wait. For any thread."""
        return len(self._inbox) + len(self._heap)

    def submit(self, task: Task) -> None:
        self._inbox.put(task)

    def step(self, timeout: float | None) -> bool:
        for task in self._inbox.take_all(0 if self._heap else timeout):
            self._take(task)
        if not self._heap:
            return False
        order, _, task = heappop(self._heap)
        self._work(task, order)
        return True

    def wakeup(self) -> None:
        self._inbox.wakeup()

    def _take(self, task: Task) -> None:
        now = self._clock.monotonic()
        due = self._not_before.get(task.key, 0.0)
        if due > now:
            self._timer.at(due, lambda: self._inbox.put(task))
        else:
            self._push(now + task.cost * _UNIT_S, task)

    def _push(self, order: float, task: Task) -> None:
        self._number += 1
        heappush(self._heap, (order, self._number, task))

    def _work(self, task: Task, order: float) -> None:
        began = self._clock.monotonic()
        is_done = True
        try:
            is_done = task.run()
            if is_done:
                task.done()
        except Exception as error:
            log.error("group_task_failed", group=task.key, error=repr(error))
        now = self._clock.monotonic()
        task.spent_s += now - began
        if not is_done:
            self._push(max(order, now), task)
        else:
            self._not_before = {key: due for key, due in self._not_before.items() if due > now}
            self._not_before[task.key] = now + _GROUP_PAUSE * task.spent_s
        self._worked_s += now - began
        if self._worked_s >= _PAUSE_EVERY_S:
            self._pause(min(self._worked_s, _PAUSE_MAX_S))
            self._worked_s = 0.0
