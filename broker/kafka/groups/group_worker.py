"""Computes target assignments and matches of regular expressions for groups, on a thread of its own, without their locks.

The cheapest waiting task is done first, but no task is overtaken for longer than its own expected work. A running task holds up
the others, and through the interpreter's lock all other threads. So a group gets the thread for at most a fifth of the time, and
all groups together for about half of it: a client that changes its subscription again and again costs no more.

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

# Expected time (s) of a unit of a task's cost.
_UNIT_S = 4e-6
# The pause of a group before its next task, as a multiple of the time of its last task.
_GROUP_PAUSE = 4
# Longest pause for all groups (s). A pause is as long as the work since the last pause.
_PAUSE_MAX_S = 0.1
# Work between pauses (s).
_PAUSE_EVERY_S = 0.005


def pause(seconds: float) -> None:
    Event().wait(seconds)


@attrs.define(eq=False)
class Task:
    """``run`` is called until it returns True, without a lock. ``done`` takes the result; both handle their own errors.

    ``key``: the owner of the task. ``cost``: approximate number of units of 4 us.
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
        # Earliest start of a group's next task (monotonic s), for groups for which it is in the future.
        self._not_before: dict[str, float] = {}

    @property
    def waiting(self) -> int:
        """Number of waiting tasks. For any thread."""
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
