"""Admin calls about tenants and namespaces: list, create, delete, unload, and what is skipped in all topics of a namespace.

The ``adminRoles`` of a tenant may make all calls about its namespaces and topics (``rights.py``). Who they are is said by those
who may alter the cluster, as by super users in Pulsar.
"""

from functools import partial

from broker.network.routes import NO_CONTENT, Answer, Call, HttpError, Route, json_answer
from broker.pulsar.admin.calls import json_object, namespace_name, require_cluster, require_tenant, require_topic, route
from broker.pulsar.admin.permissions import Permissions
from broker.pulsar.admin.policy_names import CLUSTER, parse_policies
from broker.pulsar.admin.topics import Topics
from broker.pulsar.context import PulsarContext
from broker.pulsar.refusals import TopicNotFound
from broker.pulsar.topic_names import check_namespace
from broker.security.acl import Operation

TENANT = "/admin/v2/tenants/{tenant}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"

# All topics are in one bundle, as the whole broker serves all of them.
BUNDLE = "0x00000000_0xffffffff"


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
        """The body has its policies, and permissions in ``auth_policies``."""
        namespace = namespace_name(call)
        require_tenant(self._context, call, Operation.ALTER)
        body = json_object(call)
        _clusters(body.get("replication_clusters"))
        policies = parse_policies(body)
        grant = self._permissions.granting(namespace, body.get("auth_policies"))

        def prepare() -> None:
            """Before the namespace, so that it is never without them. What is left of a call that failed in between is
            replaced."""
            self._permissions.forget(call, namespace)
            self._context.policies.replace_namespace(namespace, policies)
            grant()

        self._context.namespaces.create(namespace, prepare)
        return NO_CONTENT

    def delete(self, call: Call) -> Answer:
        """With ``force`` its topics are deleted first."""
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
        self._remove_topics(call, namespace)  # what clients have made meanwhile; they cannot make any more
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
    """There is one. Raises HttpError."""
    if value is None or value == []:
        return [CLUSTER]
    if value != [CLUSTER]:
        raise HttpError(412, f"There is one cluster: {CLUSTER}.")
    return [CLUSTER]
