"""Tenants, namespaces, and what has been set for namespaces and topics: their policies.

A namespace of ``pulsar_namespaces`` is always there, and its tenant with it; all others are made by admin calls. What is kept are
documents of the catalogue: of kind "pulsar-tenant" by name, "pulsar-namespace" by ``tenant/namespace``, and
"pulsar-admin-policies" by
the id of a topic, which makes a topic that is deleted and made again start without policies.

Policies are a JSON object whose keys and values are those of Pulsar's admin API (``retention_policies``). A value of the topic
counts before one of its namespace.

Any thread. Questions take no lock: a value is replaced as a whole. Changes may block, and are in force when they are durable;
``_lock`` is held meanwhile, so that they are written in their order.

Tests: tests/pulsar/test_namespaces.py.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from broker.errors import Refusal, StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.pulsar.refusals import NotAllowed, TooManyRequests, TopicNotFound
from broker.runtime.threads import Lock

log = get_logger("pulsar")

TENANT_KIND: Final = "pulsar-tenant"
NAMESPACE_KIND: Final = "pulsar-namespace"
POLICIES_KIND: Final = "pulsar-admin-policies"

# All of them are in memory: 10,000 namespaces with their usual policies take some 10 MB.
TENANTS_MAX: Final = 1_000
NAMESPACES_MAX: Final = 10_000
# Bytes of the policies of one namespace or topic, or of what is kept of a tenant.
_DOCUMENT_MAX: Final = 64 * 1024

Json = Mapping[str, Any]


class AlreadyExists(Refusal):
    """There is a tenant or a namespace of this name."""


class Namespaces:
    def __init__(self, catalogue: Catalogue, always: Iterable[str]) -> None:
        """``always``: namespaces that are there without having been made."""
        self._catalogue = catalogue
        self._always = frozenset(always)
        self._tenants: dict[str, Json] = {name.partition("/")[0]: {} for name in self._always}
        self._namespaces: dict[str, Json] = {name: {} for name in sorted(self._always)}
        self._topics: dict[UUID, Json] = {}
        self._lock = Lock()

    def load(self, topic_ids: Iterable[UUID]) -> None:
        """Read the catalogue, and remove what belongs to topics that do not exist any more. Raises StorageError."""
        for name, body in self._catalogue.load_documents(TENANT_KIND):
            self._tenants[name] = _decode(body)
        for name, body in self._catalogue.load_documents(NAMESPACE_KIND):
            self._namespaces[name] = _decode(body)
            self._tenants.setdefault(name.partition("/")[0], {})
        existing, gone = set(topic_ids), []
        for key, body in self._catalogue.load_documents(POLICIES_KIND):
            if UUID(key) in existing:
                self._topics[UUID(key)] = _decode(body)
            else:
                gone.append((POLICIES_KIND, key, None))
        if gone:
            self._catalogue.alter_documents(gone)

    # -- questions ----------------------------------------------------------------------------------------------------

    def exists(self, namespace: str) -> bool:
        return namespace in self._namespaces

    def require(self, namespace: str) -> None:
        """Raises TopicNotFound."""
        if namespace not in self._namespaces:
            raise TopicNotFound(f"Namespace {namespace[:300]} does not exist")

    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def tenant(self, name: str) -> Json | None:
        return self._tenants.get(name)

    def namespaces(self, tenant: str) -> list[str]:
        return sorted(name for name in self._namespaces.copy() if name.startswith(f"{tenant}/"))

    def policies(self, namespace: str) -> Json:
        """Those that were set. Raises TopicNotFound."""
        self.require(namespace)
        return self._namespaces.get(namespace, {})

    def topic_policies(self, topic_id: UUID) -> Json:
        return self._topics.get(topic_id, {})

    def policy(self, namespace: str, topic_id: UUID, key: str) -> Any:
        """What holds for a topic; None: neither it nor its namespace has such a policy."""
        value = self._topics.get(topic_id, {}).get(key)
        return self._namespaces.get(namespace, {}).get(key) if value is None else value

    # -- changes: may block, raise StorageError -----------------------------------------------------------------------

    def put_tenant(self, name: str, info: Json, *, new: bool) -> None:
        """``new``: it must not exist; otherwise it must. Raises AlreadyExists, TopicNotFound, TooManyRequests, NotAllowed."""
        with self._lock:
            if new and name in self._tenants:
                raise AlreadyExists(f"Tenant {name} already exists")
            if not new and name not in self._tenants:
                raise TopicNotFound(f"Tenant {name} does not exist")
            if new and len(self._tenants) >= TENANTS_MAX:
                raise TooManyRequests(f"There may be {TENANTS_MAX} tenants.")
            self._write(TENANT_KIND, name, info)
            self._tenants[name] = info

    def delete_tenant(self, name: str) -> None:
        """Raises TopicNotFound, NotAllowed."""
        with self._lock:
            if name not in self._tenants:
                raise TopicNotFound(f"Tenant {name} does not exist")
            if self.namespaces(name):
                raise AlreadyExists("The tenant still has active namespaces")
            self._write(TENANT_KIND, name, None)
            del self._tenants[name]

    def create(self, namespace: str, policies: Json) -> None:
        """Raises AlreadyExists, TopicNotFound for an unknown tenant, TooManyRequests, NotAllowed."""
        with self._lock:
            tenant = namespace.partition("/")[0]
            if tenant not in self._tenants:
                raise TopicNotFound(f"Tenant {tenant} does not exist")
            if namespace in self._namespaces:
                raise AlreadyExists(f"Namespace {namespace} already exists")
            if len(self._namespaces) >= NAMESPACES_MAX:
                raise TooManyRequests(f"There may be {NAMESPACES_MAX} namespaces.")
            self._write(NAMESPACE_KIND, namespace, policies)
            self._namespaces[namespace] = policies

    def delete(self, namespace: str) -> None:
        """Its topics have gone before. Raises TopicNotFound, NotAllowed."""
        with self._lock:
            self.require(namespace)
            if namespace in self._always:
                raise NotAllowed(f"Take {namespace} out of pulsar_namespaces to have it deleted.")
            self._write(NAMESPACE_KIND, namespace, None)
            del self._namespaces[namespace]

    def set_policy(self, namespace: str, key: str, value: Any) -> None:
        """None takes it back. Raises TopicNotFound, NotAllowed."""
        with self._lock:
            policies = _with(self.policies(namespace), key, value)
            self._write(NAMESPACE_KIND, namespace, policies)
            self._namespaces[namespace] = policies

    def set_topic_policy(self, topic_id: UUID, key: str, value: Any) -> None:
        """None takes it back. Raises NotAllowed."""
        with self._lock:
            policies = _with(self.topic_policies(topic_id), key, value)
            self._write(POLICIES_KIND, str(topic_id), policies or None)
            if policies:
                self._topics[topic_id] = policies
            else:
                self._topics.pop(topic_id, None)

    def forget_topic(self, topic_id: UUID) -> None:
        """The topic has been deleted."""
        with self._lock:
            if self._topics.pop(topic_id, None) is None:
                return
            try:
                self._write(POLICIES_KIND, str(topic_id), None)
            except StorageError as error:  # the next start removes it
                log.error("topic_policies_not_removed", error=str(error))

    def _write(self, kind: str, key: str, value: Json | None) -> None:
        body = None if value is None else json.dumps(value, separators=(",", ":")).encode()
        if body is not None and len(body) > _DOCUMENT_MAX:
            raise NotAllowed(f"The policies would take {len(body)} bytes, and may take {_DOCUMENT_MAX}.")
        self._catalogue.alter_documents([(kind, key, body)])


def _with(policies: Json, key: str, value: Any) -> Json:
    changed = {**policies, key: value}
    if value is None:
        del changed[key]
    return changed


def _decode(body: bytes) -> Json:
    """Raises StorageError."""
    try:
        value = json.loads(body)
        if not isinstance(value, dict):
            raise ValueError("no object")
    except ValueError:
        raise StorageError("The catalogue has policies that cannot be read.") from None
    return value
