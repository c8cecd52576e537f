"""The policies of all namespaces and topics, in the catalogue: documents of kind "pulsar-policies".

The key is ``namespace/`` and the namespace's name, or ``topic/`` and the topic's id, so that a topic that is made again under
the same name has none of the policies of the last one. All partitions of a topic share its policies.

Any thread. Reading takes no lock. What writes may block; changes are made one after the other, and who has asked to be told is
told after each, on the thread that made it and with the lock held.
"""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import attrs

from broker.errors import StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.pulsar.policies.policies import BROKER, Policies, decode, encode
from broker.runtime.threads import Lock

log = get_logger("pulsar")

KIND: Final = "pulsar-policies"
_NONE: Final = Policies()
# Topics whose policies are remembered; others are put together again each time (10 us).
_EFFECTIVE_MAX: Final = 20_000


class PolicyStore:
    def __init__(self, catalogue: Catalogue, broker: Policies = BROKER) -> None:
        """``broker``: what holds where neither the topic nor the namespace says otherwise."""
        self.broker = broker
        self.on_change: list[Callable[[], None]] = []
        self._catalogue = catalogue
        self._stored: dict[str, Policies] = {}
        self._effective: dict[tuple[str, UUID], Policies] = {}  # replaced as a whole with each change
        self._lock = Lock()

    def load(self, exists: Callable[[UUID], bool]) -> None:
        """Read the catalogue, and remove what belongs to topics that do not exist any more. Raises StorageError."""
        gone: list[tuple[str, str, bytes | None]] = []
        for key, body in self._catalogue.load_documents(KIND):
            kind, _, name = key.partition("/")
            if kind == "topic" and not exists(UUID(name)):
                gone.append((KIND, key, None))
            else:
                self._stored[key] = decode(body)
        if gone:
            self._catalogue.alter_documents(gone)

    def namespace(self, name: str) -> Policies:
        """Those that are set for it. ``name``: tenant/namespace."""
        return self._stored.get(f"namespace/{name}", _NONE)

    def topic(self, topic_id: UUID) -> Policies:
        """Those that are set for it."""
        return self._stored.get(f"topic/{topic_id}", _NONE)

    def of(self, namespace: str, topic_id: UUID) -> Policies:
        """Those that hold for the topic."""
        effective = self._effective
        key = (namespace, topic_id)
        found = effective.get(key)
        if found is None:
            found = self.topic(topic_id).over(self.of_namespace(namespace))
            if len(effective) < _EFFECTIVE_MAX:
                effective[key] = found
        return found

    def of_namespace(self, name: str) -> Policies:
        """Those that hold for the topics of a namespace that say nothing else."""
        return self.namespace(name).over(self.broker)

    # -- changes: may block, raise StorageError -----------------------------------------------------------------------------

    def set_namespace(self, name: str, **policies: Any) -> None:
        """Set these members of Policies; None removes one. A function is given what is set now, and returns what is to be."""
        self._set(f"namespace/{name}", policies)

    def replace_namespace(self, name: str, policies: Policies) -> None:
        """Set these and no others."""
        with self._lock:
            self._write(f"namespace/{name}", None if policies == _NONE else policies)

    def set_topic(self, topic_id: UUID, **policies: Any) -> None:
        """The same for a topic."""
        self._set(f"topic/{topic_id}", policies)

    def remove_namespace(self, name: str) -> None:
        self._remove(f"namespace/{name}")

    def forget(self, topic_id: UUID) -> None:
        """The topic has been deleted. Does not raise: what cannot be removed now goes with the next start."""
        try:
            self._remove(f"topic/{topic_id}")
        except StorageError as error:
            log.warning("policies_not_removed", topic_id=str(topic_id), error=str(error))

    def _set(self, key: str, policies: dict[str, Any]) -> None:
        with self._lock:
            before = self._stored.get(key, _NONE)
            values = {
                name: value(getattr(before, name)) if callable(value) else value for name, value in policies.items()
            }
            changed = attrs.evolve(before, **values)
            self._write(key, None if changed == _NONE else changed)

    def _remove(self, key: str) -> None:
        with self._lock:
            if key in self._stored:
                self._write(key, None)

    def _write(self, key: str, policies: Policies | None) -> None:
        self._catalogue.alter_documents([(KIND, key, None if policies is None else encode(policies))])
        stored = self._stored.copy()
        if policies is None:
            stored.pop(key, None)
        else:
            stored[key] = policies
        self._stored = stored
        self._effective = {}
        for tell in self.on_change:
            tell()
