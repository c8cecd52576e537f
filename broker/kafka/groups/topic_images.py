"""The consumer groups' view of the topics: an immutable image, which is replaced when topics have changed.

Any thread that changes a topic calls ``changed`` with its name. The catalogue writer's thread makes the next image, of all
changes that have come by then, and calls ``on_change`` with the names. Making it copies two tables, which takes 0.2 ms for 10,000
topics; so it is done at most ``_PER_SECOND`` times a second however often topics change. Readers use ``now``, except those that
ask for topics that may just have been made: they use ``current``.
"""

from collections.abc import Callable, Iterable
from uuid import UUID

from broker.kafka.groups.consumer.values import TopicInfo, TopicsImage
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.storage import config

_PER_SECOND = 20


class TopicImages:
    """``look_up`` returns the present topic of a name. ``soon`` runs a function on the thread that makes the images."""

    def __init__(
        self,
        look_up: Callable[[str], config.TopicInfo | None],
        soon: Callable[[Callable[[], None]], None],
        clock: Clock,
        timer: Timer,
    ) -> None:
        self.now = TopicsImage.of(0, {})
        self.on_change: list[Callable[[frozenset[str]], None]] = []
        self._look_up = look_up
        self._soon = soon
        self._clock = clock
        self._timer = timer
        self._not_before = 0.0
        self._lock = Lock()
        # Names of topics that have changed: since the image was made, and since listeners were told.
        self._unseen: set[str] = set()
        self._untold: set[str] = set()

    def load(self, topics: Iterable[config.TopicInfo]) -> None:
        """At the start, before anybody changes a topic or reads the image."""
        self.now = TopicsImage.of(1, {info.name: TopicInfo(info.topic_id, info.partitions) for info in topics})

    def changed(self, name: str) -> None:
        """A topic was made or deleted, or has more partitions. Called without any lock that ``look_up`` takes."""
        with self._lock:
            is_first = not self._untold
            self._unseen.add(name)
            self._untold.add(name)
        if is_first:
            now = self._clock.monotonic()
            if now >= self._not_before:
                self._soon(self._tell)
            else:
                self._timer.at(self._not_before, lambda: self._soon(self._tell))

    def current(self) -> TopicsImage:
        """The image with every change that was reported to ``changed``, made here if necessary."""
        if self._unseen:
            with self._lock:
                self._update()
        return self.now

    def _update(self) -> None:
        """The lock is held."""
        if not self._unseen:
            return
        before = self.now
        by_name, name_of = dict(before.by_name), dict[UUID, str](before.name_of)
        for name in self._unseen:
            known, info = by_name.pop(name, None), self._look_up(name)
            if known is not None:
                name_of.pop(known.topic_id, None)
            if info is not None:
                by_name[name] = TopicInfo(info.topic_id, info.partitions)
                name_of[info.topic_id] = name
        self.now = TopicsImage(before.generation + 1, by_name, name_of)
        self._unseen.clear()

    def _tell(self) -> None:
        self._not_before = self._clock.monotonic() + 1 / _PER_SECOND
        with self._lock:
            self._update()
            names, self._untold = frozenset(self._untold), set()
        for listener in self.on_change:
            listener(names)
