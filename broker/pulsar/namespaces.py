"""The tenants and namespaces that exist.

A namespace of ``pulsar_namespaces`` always exists, and its tenant with it; all others are created by admin calls and are
documents of the catalogue, of kind "pulsar-tenant" by name and "pulsar-namespace" by ``tenant/namespace``. The policies of
namespaces are in ``policies/store.py``.

Any thread. Reading takes no lock. Changes may block, and take effect when they are durable; ``_lock`` is held meanwhile, so that
they are written in order.

Tests: tests/pulsar/test_namespaces.py.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from broker.cluster.nodes import Nodes, changing
from broker.errors import Refusal, StorageError
from broker.metadata.catalogue import Catalogue
from broker.pulsar.refusals import NotAllowed, TooManyRequests, TopicNotFound
from broker.runtime.threads import Lock

TENANT_KIND: Final = "pulsar-tenant"
NAMESPACE_KIND: Final = "pulsar-namespace"

# All of them are in memory, and each takes some 200 bytes.
TENANTS_MAX: Final = 1_000
NAMESPACES_MAX: Final = 10_000
# Bytes of a document.
_DOCUMENT_MAX: Final = 64 * 1024

Json = Mapping[str, Any]


class AlreadyExists(Refusal):
    """A tenant or namespace with this name exists."""


class Namespaces:
    def __init__(self, catalogue: Catalogue, always: Iterable[str], nodes: Nodes | None = None) -> None:
        """``always``: namespaces that exist without having been created. ``nodes``: set if other nodes have the same tenants."""
        self._nodes = nodes
        self._catalogue = catalogue
        self._always = frozenset(always)
        self._tenants: dict[str, Json] = {name.partition("/")[0]: {} for name in self._always}
        self._namespaces: dict[str, Json] = {name: {} for name in sorted(self._always)}
        self._administrators: dict[str, frozenset[str]] = {}  # by tenant, if it has any
        # Called after administrators have changed, without the lock, to check the rights of connected clients again.
        self.on_roles_changed: list[Callable[[], None]] = []
        self._lock = Lock()

    def load(self) -> None:
        """Read the catalogue. Raises StorageError."""
        for name, body in self._catalogue.load_documents(TENANT_KIND):
            self._put(name, _decode(body))
        for name, body in self._catalogue.load_documents(NAMESPACE_KIND):
            self._namespaces[name] = _decode(body)
            self._tenants.setdefault(name.partition("/")[0], {})

    def reload(self) -> None:
        """Put in force what another node has made of the catalogue. Raises StorageError."""
        with self._lock:
            tenants = {name: _decode(body) for name, body in self._catalogue.load_documents(TENANT_KIND)}
            namespaces = {name: _decode(body) for name, body in self._catalogue.load_documents(NAMESPACE_KIND)}
            namespaces.update({name: {} for name in self._always - namespaces.keys()})
            for name in namespaces:
                tenants.setdefault(name.partition("/")[0], {})
            roles_changed = tenants != self._tenants
            for name in self._tenants.keys() - tenants.keys():
                self._forget(name)
            for name, info in tenants.items():
                self._put(name, info)
            self._namespaces = namespaces
        if roles_changed:
            for call in self.on_roles_changed:
                call()

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

    def administers(self, user: str, tenant: str) -> bool:
        """Whether the user is among the tenant's ``adminRoles``."""
        return bool(self._administrators) and user in self._administrators.get(tenant, ())

    def namespaces(self, tenant: str) -> list[str]:
        return sorted(name for name in self._namespaces.copy() if name.startswith(f"{tenant}/"))

    # -- changes: may block, raise StorageError -----------------------------------------------------------------------

    def put_tenant(self, name: str, info: Json, *, new: bool) -> None:
        """``new``: the tenant must not exist; otherwise it must. Raises AlreadyExists, TopicNotFound, TooManyRequests,
        NotAllowed."""
        with changing(self._nodes, self.reload), self._lock:
            if new and name in self._tenants:
                raise AlreadyExists(f"Tenant {name} already exists")
            if not new and name not in self._tenants:
                raise TopicNotFound(f"Tenant {name} does not exist")
            if new and len(self._tenants) >= TENANTS_MAX:
                raise TooManyRequests(f"There may be {TENANTS_MAX} tenants.")
            self._write(TENANT_KIND, name, info)
            self._put(name, info)
        for call in self.on_roles_changed:
            call()

    def delete_tenant(self, name: str) -> None:
        """Raises TopicNotFound, NotAllowed."""
        with changing(self._nodes, self.reload), self._lock:
            if name not in self._tenants:
                raise TopicNotFound(f"Tenant {name} does not exist")
            if self.namespaces(name):
                raise AlreadyExists("The tenant still has active namespaces")
            self._write(TENANT_KIND, name, None)
            self._forget(name)

    def create(self, namespace: str, prepare: Callable[[], None] = lambda: None) -> None:
        """``prepare`` is called before the namespace exists. If it raises StorageError, the namespace is not made.

        Raises AlreadyExists, TopicNotFound for an unknown tenant, TooManyRequests, NotAllowed.
        """
        with changing(self._nodes, self.reload), self._lock:
            tenant = namespace.partition("/")[0]
            if tenant not in self._tenants:
                raise TopicNotFound(f"Tenant {tenant} does not exist")
            if namespace in self._namespaces:
                raise AlreadyExists(f"Namespace {namespace} already exists")
            if len(self._namespaces) >= NAMESPACES_MAX:
                raise TooManyRequests(f"There may be {NAMESPACES_MAX} namespaces.")
            prepare()
            self._write(NAMESPACE_KIND, namespace, {})
            self._namespaces[namespace] = {}

    def delete(self, namespace: str) -> None:
        """The caller has deleted its topics. Raises TopicNotFound, NotAllowed."""
        with changing(self._nodes, self.reload), self._lock:
            self.require(namespace)
            if namespace in self._always:
                raise NotAllowed(f"Take {namespace} out of pulsar_namespaces to have it deleted.")
            self._write(NAMESPACE_KIND, namespace, None)
            del self._namespaces[namespace]

    def _put(self, name: str, info: Json) -> None:
        self._tenants[name] = info
        roles = info.get("adminRoles")
        if isinstance(roles, list) and roles:
            self._administrators[name] = frozenset(map(str, roles))
        else:
            self._administrators.pop(name, None)

    def _forget(self, tenant: str) -> None:
        del self._tenants[tenant]
        self._administrators.pop(tenant, None)

    def _write(self, kind: str, key: str, value: Json | None) -> None:
        body = None if value is None else json.dumps(value, separators=(",", ":")).encode()
        if body is not None and len(body) > _DOCUMENT_MAX:
            raise NotAllowed(f"This would take {len(body)} bytes, and may take {_DOCUMENT_MAX}.")
        self._catalogue.alter_documents([(kind, key, body)])


def _decode(body: bytes) -> Json:
    """Raises StorageError."""
    try:
        value = json.loads(body)
        if not isinstance(value, dict):
            raise ValueError("no object")
    except ValueError:
        raise StorageError("The catalogue has a tenant or a namespace that cannot be read.") from None
    return value
