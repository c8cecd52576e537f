"""Admin calls about permissions, as ACLs: a role of Pulsar's is the user of that name.

| action | ACLs |
|---|---|
| produce | WRITE and DESCRIBE on the TOPIC |
| consume | READ and DESCRIBE on the TOPIC, and READ on the GROUPs whose names are those of its subscriptions (``rights.py``) |

For a topic the ACL names the topic, and for its subscriptions how their names begin. For a namespace it covers all names that
begin as those of its topics do, and either action includes CREATE on the TOPIC: as in Pulsar, whoever may use the namespace may
have topics made there by using them. The topics of ``public/default`` have names without a beginning of their own in Kafka; for
the question of rights they have a second one (``broker/pulsar/rights.py``), so the permissions of that namespace count for
Pulsar's clients only.

Without an authorizer every client may do everything: granting and revoking succeed and do nothing.

Tests: tests/pulsar/admin/test_rights.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from broker.network.routes import NO_CONTENT, Answer, Call, HttpError, Route, json_answer
from broker.pulsar.admin.calls import namespace_name, require_existing, require_tenant, route, topic_name
from broker.pulsar.context import PulsarContext
from broker.pulsar.topic_names import namespace_prefix, subscriptions_prefix
from broker.security.acl import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter

TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"

_ACTIONS: Final = {
    "produce": (Operation.WRITE, Operation.DESCRIBE),
    "consume": (Operation.READ, Operation.DESCRIBE),
}


@attrs.frozen
class _Resource:
    name: str
    pattern: PatternType


class Permissions:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            *self._routes(NAMESPACE, self._of_namespace),
            *self._routes(TOPIC, self._of_topic),
        ]

    def _routes(self, base: str, resource: "Resource") -> list[Route]:
        return [
            route("GET", base, lambda call: self.list(call, resource)),
            route("POST", base + "/{role}", lambda call: self.grant(call, resource)),
            route("DELETE", base + "/{role}", lambda call: self.revoke(call, resource)),
        ]

    def _of_namespace(self, call: Call) -> _Resource:
        namespace = namespace_name(call)
        self._context.namespaces.require(namespace)
        return _Resource(namespace_prefix(namespace), PatternType.PREFIXED)

    def _of_topic(self, call: Call) -> _Resource:
        name = topic_name(call)
        require_existing(self._context, name)
        return _Resource(self._context.kafka_name(name), PatternType.LITERAL)

    # -- calls ------------------------------------------------------------------------------------------------------------

    def list(self, call: Call, resource: "Resource") -> Answer:
        require_tenant(self._context, call, Operation.DESCRIBE)
        authorizer = self._authorizer()
        if authorizer is None:
            return json_answer({})
        granted: dict[str, set[Operation]] = {}
        for acl in call.work.each(_matches(authorizer, _filter(resource(call)))):
            granted.setdefault(acl.principal.removeprefix("User:"), set()).add(acl.operation)
        return json_answer(
            {
                role: [action for action, needed in _ACTIONS.items() if operations.issuperset(needed)]
                for role, operations in granted.items()
            }
        )

    def grant(self, call: Call, resource: "Resource") -> Answer:
        require_tenant(self._context, call, Operation.ALTER)
        actions = _actions(call.json())
        self._create(_acls(call.names["role"], resource(call), actions))
        return NO_CONTENT

    def granting(self, namespace: str, auth_policies: Any) -> Callable[[], None]:
        """What grants the permissions in the object of a new namespace's policies. It may raise a Refusal, StorageError. Raises
        HttpError."""
        resource = _Resource(namespace_prefix(namespace), PatternType.PREFIXED)
        found = _object(_object(auth_policies).get("namespace_auth"))
        acls = [acl for role, actions in found.items() for acl in _acls(role, resource, _actions(actions))]
        return lambda: self._create(acls)

    def _create(self, acls: Sequence[Acl]) -> None:
        authorizer = self._authorizer() if acls else None
        if authorizer is not None:
            for error in authorizer.create(acls):
                if error is not None:
                    raise error

    def forget(self, call: Call, namespace: str) -> None:
        """It is deleted: whoever makes one of the same name does not inherit its permissions."""
        authorizer = self._context.authorizer
        if isinstance(authorizer, AclAuthorizer):
            self._delete(authorizer, call, _Resource(namespace_prefix(namespace), PatternType.PREFIXED))

    @staticmethod
    def _delete(authorizer: AclAuthorizer, call: Call, resource: _Resource, principal: str | None = None) -> None:
        filters = (_filter(resource), _filter(_subscriptions(resource), ResourceType.GROUP))
        for result in authorizer.delete(
            [attrs.evolve(each, principal=principal) for each in filters], call.work.checkpoint
        ):
            if isinstance(result, Exception):
                raise result

    def revoke(self, call: Call, resource: "Resource") -> Answer:
        """All that the role was granted here."""
        require_tenant(self._context, call, Operation.ALTER)
        authorizer = self._authorizer()
        if authorizer is None:
            return NO_CONTENT
        self._delete(authorizer, call, resource(call), _role(call))
        return NO_CONTENT

    def _authorizer(self) -> AclAuthorizer | None:
        authorizer = self._context.authorizer
        if authorizer is not None and not isinstance(authorizer, AclAuthorizer):
            raise HttpError(501, "The authorizer of this broker has no ACLs.")
        return authorizer


Resource = Callable[[Call], _Resource]


def _role(call: Call) -> str:
    return f"User:{call.names['role']}"


def _filter(resource: _Resource, kind: ResourceType = ResourceType.TOPIC) -> AclFilter:
    """What was granted: an ACL that denies is nobody's permission, and stays."""
    return AclFilter(resource_type=kind, name=resource.name, pattern=resource.pattern, permission=Permission.ALLOW)


def _subscriptions(resource: _Resource) -> _Resource:
    """Those of the topic, or of all topics of the namespace."""
    if resource.pattern is PatternType.PREFIXED:
        return resource
    return _Resource(subscriptions_prefix(resource.name), PatternType.PREFIXED)


def _matches(authorizer: AclAuthorizer, filter_: AclFilter) -> Iterable[Acl]:
    return (acl for acl in filter_.candidates(authorizer.rules) if filter_.matches(acl))


def _object(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise HttpError(400, "Permissions have to be a JSON object, of lists of actions by role.")
    return value


def _actions(value: Any) -> Sequence[str]:
    if not isinstance(value, list) or not set(map(str, value)) <= _ACTIONS.keys():
        raise HttpError(412, f"The actions are {' and '.join(_ACTIONS)}.")
    return value


def _acls(role: str, resource: _Resource, actions: Sequence[str]) -> Sequence[Acl]:
    principal = f"User:{role}"

    def allow(kind: ResourceType, name: str, pattern: PatternType, operation: Operation) -> Acl:
        return Acl(kind, name, pattern, principal, WILDCARD, operation, Permission.ALLOW)

    acls = [
        allow(ResourceType.TOPIC, resource.name, resource.pattern, operation)
        for action in dict.fromkeys(actions)
        for operation in _ACTIONS[action]
    ]
    if actions and resource.pattern is PatternType.PREFIXED:
        acls.append(allow(ResourceType.TOPIC, resource.name, resource.pattern, Operation.CREATE))
    if "consume" in actions:
        subscriptions = _subscriptions(resource)
        acls.append(allow(ResourceType.GROUP, subscriptions.name, subscriptions.pattern, Operation.READ))
    return list(dict.fromkeys(acls))
