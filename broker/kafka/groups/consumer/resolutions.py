"""Which topics the regular expressions of one consumer group match, and when they have to be matched again.

Pure bookkeeping of a ``ConsumerGroup``, under the group's lock. All expressions of a group are matched together, so that the
members are assigned anew once: when there is a new one, when the topics have changed, and from time to time, because the rights
to topics may have changed. Between two times there is ``_PAUSE_S`` at least, and 20 times what the matching took (up to 10 s),
which bounds what a client can cause by sending new expressions, or by making topics, to a twentieth of one thread.

Tests: tests/kafka/groups/consumer/test_group_regexes.py.
"""

from collections.abc import Mapping
from math import inf

from broker.kafka.groups.consumer.regexes import RegexTask
from broker.kafka.groups.consumer.values import TopicsImage

_PAUSE_S = 1.0
_PAUSE_FACTOR = 20
_PAUSE_MAX_S = 10.0


class Resolutions:
    def __init__(self, refresh_s: float) -> None:
        # Expression -> names of topics. Replaced as a whole, never changed.
        self.resolved: Mapping[str, frozenset[str]] = {}
        # On whose behalf topics are looked for.
        self.context: object = None
        self.task: RegexTask | None = None
        self._refresh_s = refresh_s
        self._generation = -1
        self._not_before = -inf
        self._refresh_at = inf

    def are_complete(self, regexes: frozenset[str]) -> bool:
        """Every expression has been matched at least once."""
        return not regexes or self.resolved.keys() >= regexes

    def due(self, regexes: frozenset[str], topics: TopicsImage) -> float:
        """When they are to be matched again; infinity if that is not foreseeable."""
        if not regexes or self.task is not None:
            return inf
        if not self.are_complete(regexes) or topics.generation != self._generation:
            return self._not_before
        return max(self._refresh_at, self._not_before)

    def begin(self, regexes: frozenset[str], topics: TopicsImage, now: float) -> RegexTask:
        self.task = RegexTask(tuple(sorted(regexes)), topics, self.context, now)
        return self.task

    def end(self, task: RegexTask, regexes: frozenset[str], now: float) -> bool:
        """True if the topics of an expression have changed."""
        self.task = None
        pause_s = _PAUSE_FACTOR * (now - task.started)
        self._not_before = now + min(max(_PAUSE_S, pause_s), _PAUSE_MAX_S)
        if task.matches is None:
            return False  # tried again after the pause
        self._generation = task.topics.generation
        self._refresh_at = now + self._refresh_s
        before = self.resolved
        after = {regex: task.matches.get(regex, before.get(regex)) for regex in regexes}
        self.resolved = {regex: names for regex, names in after.items() if names is not None}
        return any(before.get(regex) != names for regex, names in self.resolved.items())
