"""Deletes committed offsets that nobody needs any more: they are too old (KIP-211), or their topic is deleted.

A sweep looks at all groups, on the catalogue writer's thread, a part at a time. ``offsets.py`` has the rule.

Tests: tests/kafka/groups/test_offset_coordinator.py, tests/kafka/groups/test_bounds.py.
"""

from collections.abc import Iterable
from functools import partial

from broker.kafka.groups.offsets import delete_offsets, retention_of
from broker.kafka.groups.registry import GroupEntry, GroupRegistry, log_failure
from broker.runtime.timers import TimerHandle

# Groups that a sweep looks at before it lets commits pass. Most groups have some hundred offsets at most.
_SWEEP_PART = 100


class OffsetExpiration:
    """Part of the ``GroupCoordinator``. Any thread may call any method."""

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self._next_sweep: TimerHandle | None = None

    def start(self) -> None:
        registry = self._registry
        deadline = registry.clock.monotonic() + registry.config.offsets_retention_check_interval_ms / 1000
        # The timer's thread must not walk all groups: the catalogue writer's thread does.
        self._next_sweep = registry.timer.at(deadline, partial(registry.writer.call_soon, self._begin_sweep))

    def stop(self) -> None:
        if self._next_sweep is not None:
            self._next_sweep.cancel()

    def _begin_sweep(self) -> None:
        self._sweep_part(self._registry.entries())

    def _sweep_part(self, entries: list[GroupEntry]) -> None:
        """Look at some of them now, and at the others after everything that waits for the writer by then."""
        try:
            self.sweep(entries[:_SWEEP_PART])
        finally:  # the sweeps go on, whatever fails for one group
            if self._registry.is_active:
                if len(entries) > _SWEEP_PART:
                    self._registry.writer.call_soon(partial(self._sweep_part, entries[_SWEEP_PART:]))
                else:
                    self.start()

    def sweep(self, entries: Iterable[GroupEntry] | None = None) -> None:
        """Delete offsets that are too old, and groups of which nothing is left: of these entries, or of all."""
        registry = self._registry
        now_ms = registry.clock.time_ms()
        retention_ms = registry.config.offsets_retention_minutes * 60_000
        for entry in registry.entries() if entries is None else entries:
            with entry.lock:
                group = entry.group
                retention = retention_of(group, entry.empty_since_ms, now_ms, retention_ms)
                expired = [] if retention is None else entry.offsets.expired(retention)
                if expired:
                    entry.offsets.remove(expired)
                    registry.count(entry)
                    registry.writer.change(partial(delete_offsets, group.group_id, expired), log_failure)
                registry.delete_if_finished(entry)

    def on_topic_deleted(self, topic: str) -> None:
        """Delete its offsets in every group. Returns before that is durable; if it never is, ``GroupRegistry.load`` does it."""
        registry = self._registry
        for entry in registry.entries():
            if not entry.offsets.may_have(topic):  # most have not, and there are as many locks as groups
                continue
            with entry.lock:
                removed = entry.offsets.of_topic(topic)
                if removed:
                    entry.offsets.remove(removed)
                    registry.count(entry)
                    # Group by group and under its lock, so that a commit that still arrives is written after this.
                    registry.writer.change(partial(delete_offsets, entry.group.group_id, removed), log_failure)
                    registry.delete_if_finished(entry)
