"""Series for the busiest of many things, such as topics, and one for all others together.

Clients choose how many topics and groups there are, and every series costs memory here and at whoever stores it. So only some
have series of their own. Who has one keeps it for as long as nobody else has become much busier, because series that come and go
are of little use.

Not for several threads at a time.
"""

from collections.abc import Mapping

from broker.metrics.names import OTHER

# How often (s) places are given to things that have become busier.
_REVIEW_S = 60.0
# How much busier one must be than another whose place it takes.
_BUSIER = 2.0


class Chosen:
    """Which things have series of their own: at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.names: frozenset[str] = frozenset()
        self._before: Mapping[str, float] = {}
        self._reviewed_at = float("-inf")

    def choose(self, totals: Mapping[str, float], now: float) -> frozenset[str]:
        """``totals``: by thing, something that only goes up, such as bytes. ``now``: monotonic s."""
        if len(totals) <= self._most:
            self.names = frozenset(totals)
            return self.names
        names = {name for name in self.names if name in totals}
        if now - self._reviewed_at >= _REVIEW_S or not names:
            before, self._before, self._reviewed_at = self._before, dict(totals), now
            activity = {name: total - before.get(name, 0.0) for name, total in totals.items()}
            candidates = sorted((name for name in totals if name not in names), key=lambda name: -activity[name])
            for name in candidates[: self._most]:
                if len(names) < self._most:
                    names.add(name)
                    continue
                least = min(names, key=lambda member: activity[member])
                if activity[name] <= _BUSIER * activity[least]:
                    break
                names.remove(least)
                names.add(name)
        self.names = frozenset(names)
        return self.names


class BoundedCounter:
    """A counter by thing. The sum of the others never goes down, whoever gets or loses a series, and whatever is deleted."""

    def __init__(self) -> None:
        # By thing, how much of its total belongs to the series of all others; and of things that there are no more, altogether.
        self._hidden: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._gone = 0.0

    def split(self, totals: Mapping[str, float], chosen: frozenset[str]) -> dict[str, float]:
        """By name: the total of each that was chosen, and what belongs to the others under ``OTHER``."""
        shown: dict[str, float] = {}
        for name, total in totals.items():
            last = self._last.get(name, 0.0)
            if total < last:  # another thing of the same name
                self._gone += self._hidden.pop(name, 0.0)
                last = 0.0
            if name in chosen:
                shown[name] = total
            elif total > last:
                self._hidden[name] = self._hidden.get(name, 0.0) + total - last
        for name in self._last.keys() - totals.keys():
            self._gone += self._hidden.pop(name, 0.0)
        self._last = dict(totals)
        others = self._gone + sum(self._hidden.values())
        if others:
            shown[OTHER] = shown.get(OTHER, 0.0) + others
        return shown


def summed(values: Mapping[str, float], chosen: frozenset[str]) -> dict[str, float]:
    """The same for gauges."""
    shown: dict[str, float] = {}
    for name, value in values.items():
        key = name if name in chosen else OTHER
        shown[key] = shown.get(key, 0.0) + value
    return shown
