"""The values that groups, or subscriptions to metrics of clients, have of their own: as text, by the settings' names.

They are in the catalogue, beside the broker's settings, and in memory. Any thread reads them without a lock; handler threads
change them, one after the other. A group or a subscription need not exist to be given values.

Tests: tests/kafka/configs/test_group_settings.py,
tests/kafka/test_client_metrics.py.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from broker.metadata.catalogue import Catalogue
from broker.runtime.threads import Lock

# A new value by the setting's name, or None to remove the value.
Changes = dict[str, str | None]
# Returns the changes from the resource's own values, and a function for the value in force of a setting without an own value.
Plan = Callable[[Mapping[str, str], Callable[[str], str]], Changes]

_NOTHING: Mapping[str, str] = MappingProxyType({})


def after(own: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**own, **changes}.items() if value is not None}


class OwnValues:
    """``prefix`` keeps them apart from the two entities of the broker's settings, "" and the broker's id."""

    def __init__(self, catalogue: Catalogue, prefix: str) -> None:
        self._catalogue = catalogue
        self._prefix = prefix
        self._lock = Lock()  # one change at a time
        self._own: dict[str, Mapping[str, str]] = {}

    def load(self) -> None:
        """At the start. Raises StorageError."""
        self._load()

    def _load(self) -> set[str]:
        """Returns the names whose values are not what they were. Raises StorageError."""
        with self._lock:
            before = self._own
            stored = self._catalogue.configs_by_entity(self._prefix)
            self._own = {entity.removeprefix(self._prefix): own for entity, own in stored.items()}
            return {name for name in {*before, *self._own} if before.get(name) != self._own.get(name)}

    def names(self) -> list[str]:
        """Of those with own values."""
        return list(self._own)

    def own(self, name: str) -> Mapping[str, str]:
        """The values set for ``name``."""
        return self._own.get(name, _NOTHING)

    def _has_room(self, name: str, changes: Changes, most: int) -> bool:
        """Whether no more than ``most`` have own values after the change."""
        return name in self._own or len(self._own) < most or not after(self.own(name), changes)

    def _keep(self, name: str, changes: Changes) -> None:
        """With the lock held: make the changes, durably. Raises StorageError; then nothing has changed."""
        own = after(self.own(name), changes)
        self._catalogue.alter_broker_configs(changes, self._prefix + name)
        if own:
            self._own[name] = own
        else:
            self._own.pop(name, None)
