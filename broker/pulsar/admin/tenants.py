"""Admin calls about tenants and namespaces (list, create, delete, unload), and about permissions.

The ``adminRoles`` of a tenant may make all calls about its namespaces and topics (``rights.py``). Only a client with ALTER on the
cluster sets them, as super users do in Pulsar.

Permissions are stored as ACLs: a role in Pulsar is the user of that name.

| action | ACLs |
|---|---|
| produce | WRITE and DESCRIBE on the TOPIC |
| consume | READ and DESCRIBE on the TOPIC, and READ on the GROUPs with the names of its subscriptions (``rights.py``) |

The ACLs of a topic's permission have the topic's name and, for its subscriptions, the prefix of their names. Those of a namespace
have the prefix of its topics' names, and both actions include CREATE on the TOPIC: as in Pulsar, a client that may use the
namespace may create topics there by using them. In Kafka, the names of topics of ``public/default`` have no prefix; for checking
rights they have a second name with a prefix (``broker/pulsar/rights.py``), so that namespace's permissions apply to Pulsar's
clients only.

Without an authorizer every client may do everything: granting and revoking succeed, but have no effect.

Tests: tests/pulsar/admin/test_rights.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from broker.pulsar.admin.calls import (
    check_together,
    json_object,
    namespace_name,
    require_cluster,
    require_existing,
    require_tenant,
    require_topic,
    route,
    topic_name,
)
from broker.pulsar.admin.policy_values import CLUSTER, parse_policies
from broker.pulsar.admin.topics import Topics
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import TopicNotFound
from broker.pulsar.topic_names import check_namespace, namespace_prefix, subscriptions_prefix
from broker.security.acl import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter
from broker.web.routes import NO_CONTENT, Answer, Call, HttpError, Route, json_answer

TENANT = "/admin/v2/tenants/{tenant}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"

# The only bundle: it has all topics, because this broker serves all of them.
BUNDLE = "0x00000000_0xffffffff"


@attrs.frozen
class _Resource:
    name: str
    pattern: PatternType


class Permissions:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            *self._routes(NAMESPACE_PERMISSIONS, self._of_namespace),
            *self._routes(TOPIC_PERMISSIONS, self._of_topic),
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
        """A function that grants the permissions in the object of a new namespace's policies. It may raise a Refusal or
        StorageError; ``granting`` itself raises HttpError."""
        resource = _Resource(namespace_prefix(namespace), PatternType.PREFIXED)
        permissions = _object(_object(auth_policies).get("namespace_auth"))
        acls = [acl for role, actions in permissions.items() for acl in _acls(role, resource, _actions(actions))]
        return lambda: self._create(acls)

    def _create(self, acls: Sequence[Acl]) -> None:
        authorizer = self._authorizer() if acls else None
        if authorizer is not None:
            for error in authorizer.create(acls):
                if error is not None:
                    raise error

    def forget(self, call: Call, namespace: str) -> None:
        """Delete the permissions of a deleted namespace, so that a new namespace of the same name does not inherit them."""
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
        """Revoke all permissions of the role for the resource."""
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


class Tenants:
    def __init__(self, context: PulsarContext, topics: Topics, permissions: Permissions) -> None:
        self._context = context
        self._topics = topics
        self._permissions = permissions

    def routes(self) -> list[Route]:
        return [
            route("GET", "/admin/v2/tenants", self.tenants),
            route("GET", TENANT, self.tenant),
            route("PUT", TENANT, partial(self.put_tenant, new=True)),
            route("POST", TENANT, partial(self.put_tenant, new=False)),
            route("DELETE", TENANT, self.delete_tenant),
            route("GET", "/admin/v2/namespaces/{tenant}", self.namespaces),
            route("PUT", NAMESPACE, self.create),
            route("DELETE", NAMESPACE, self.delete),
            route("GET", NAMESPACE + "/replication", self.replication),
            route("GET", NAMESPACE + "/bundles", self.bundles),
            route("PUT", NAMESPACE + "/unload", self.unload),
            route("PUT", NAMESPACE + "/{bundle}/unload", self.unload),
        ]

    # -- tenants --------------------------------------------------------------------------------------------------------

    def tenants(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        return json_answer(self._context.namespaces.tenants())

    def tenant(self, call: Call) -> Answer:
        require_tenant(self._context, call, Operation.DESCRIBE)
        info = self._context.namespaces.tenant(call.names["tenant"])
        if info is None:
            raise TopicNotFound("Tenant does not exist")
        return json_answer({"adminRoles": [], "allowedClusters": [CLUSTER], **info})

    def put_tenant(self, call: Call, *, new: bool) -> Answer:
        require_cluster(self._context, call, Operation.ALTER)
        tenant = call.names["tenant"]
        check_namespace(f"{tenant}/default")
        body = json_object(call)
        info = {"allowedClusters": _clusters(body.get("allowedClusters"))}
        roles = body.get("adminRoles") or []
        if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
            raise HttpError(400, "adminRoles has to be a list of texts.")
        self._context.namespaces.put_tenant(tenant, {**info, "adminRoles": roles}, new=new)
        return NO_CONTENT

    def delete_tenant(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.ALTER)
        self._context.namespaces.delete_tenant(call.names["tenant"])
        return NO_CONTENT

    # -- namespaces -----------------------------------------------------------------------------------------------------

    def namespaces(self, call: Call) -> Answer:
        require_tenant(self._context, call, Operation.DESCRIBE)
        tenant = call.names["tenant"]
        if self._context.namespaces.tenant(tenant) is None:
            raise TopicNotFound("Tenant does not exist")
        return json_answer(self._context.namespaces.namespaces(tenant))

    def create(self, call: Call) -> Answer:
        """The body has the namespace's policies, and its permissions in ``auth_policies``."""
        namespace = namespace_name(call)
        require_tenant(self._context, call, Operation.ALTER)
        body = json_object(call)
        _clusters(body.get("replication_clusters"))
        policies = parse_policies(body)
        grant = self._permissions.granting(namespace, body.get("auth_policies"))

        def prepare() -> None:
            """Set policies and permissions before the namespace exists, so that it is never without them. Replaces those of a
            call that failed before it created the namespace."""
            self._permissions.forget(call, namespace)
            self._context.policies.replace_namespace(namespace, policies)
            grant()

        self._context.namespaces.create(namespace, prepare)
        return NO_CONTENT

    def delete(self, call: Call) -> Answer:
        """With ``force``, the namespace's topics are deleted first."""
        namespace = namespace_name(call)
        require_tenant(self._context, call, Operation.ALTER)
        self._context.namespaces.require(namespace)
        topics = [*self._context.topics.topics(namespace), *self._context.nonpersistent.topics(namespace)]
        if topics and not call.flag("force"):
            raise HttpError(409, "Cannot delete non empty namespace")
        if namespace in self._context.config.pulsar_namespaces:
            raise HttpError(405, f"Take {namespace} out of pulsar_namespaces to have it deleted.")
        for name in call.work.each(topics):
            require_topic(self._context, call, Operation.DELETE, name, granted=True)
        self._remove_topics(call, namespace)
        self._context.policies.remove_namespace(namespace)
        self._permissions.forget(call, namespace)
        self._context.namespaces.delete(namespace)
        self._remove_topics(call, namespace)  # topics that clients created meanwhile; now they cannot create more
        return NO_CONTENT

    def _remove_topics(self, call: Call, namespace: str) -> None:
        for name in dict.fromkeys(name.whole for name in self._context.topics.topics(namespace)):
            call.work.checkpoint()
            self._topics.remove(name, force=True)
        self._context.nonpersistent.delete_namespace(namespace)

    def replication(self, call: Call) -> Answer:
        require_tenant(self._context, call, Operation.DESCRIBE)
        self._context.namespaces.require(namespace_name(call))
        return json_answer([CLUSTER])

    def bundles(self, call: Call) -> Answer:
        require_tenant(self._context, call, Operation.DESCRIBE)
        self._context.namespaces.require(namespace_name(call))
        return json_answer({"boundaries": BUNDLE.split("_"), "numBundles": 1})

    def unload(self, call: Call) -> Answer:
        namespace = namespace_name(call)
        require_tenant(self._context, call, Operation.ALTER)
        self._context.namespaces.require(namespace)
        topics = [*self._context.topics.topics(namespace), *self._context.nonpersistent.topics(namespace)]
        check_together(self._context, topics)
        for topic in self._context.topics.loaded():
            if topic.name.namespace == namespace:
                call.work.checkpoint()
                self._context.topics.unload(topic)
        for passing in self._context.nonpersistent.loaded():
            if passing.name.namespace == namespace:
                call.work.checkpoint()
                self._context.nonpersistent.close(passing)
        return NO_CONTENT


def _clusters(value: object) -> list[str]:
    """Check that the list names the only cluster. Raises HttpError."""
    if value is None or value == []:
        return [CLUSTER]
    if value != [CLUSTER]:
        raise HttpError(412, f"There is one cluster: {CLUSTER}.")
    return [CLUSTER]


TOPIC_PERMISSIONS = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/permissions"
NAMESPACE_PERMISSIONS = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"

_ACTIONS: Final = {
    "produce": (Operation.WRITE, Operation.DESCRIBE),
    "consume": (Operation.READ, Operation.DESCRIBE),
}


Resource = Callable[[Call], _Resource]


def _role(call: Call) -> str:
    return f"User:{call.names['role']}"


def _filter(resource: _Resource, kind: ResourceType = ResourceType.TOPIC) -> AclFilter:
    """Matches granted permissions only: ACLs that deny are not permissions, and stay."""
    return AclFilter(resource_type=kind, name=resource.name, pattern=resource.pattern, permission=Permission.ALLOW)


def _subscriptions(resource: _Resource) -> _Resource:
    """The subscriptions of the topic, or of all topics of the namespace."""
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
