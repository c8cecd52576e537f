"""Rights revoked under a live connection, and principals with odd names: the next request is authorized anew."""

from typing import Any

import pytest

from broker.security.acl import Operation, PatternType, Permission, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from tests.faults.logins import USER, log_in
from tests.faults.raw import Faults, Raw, fetch, produce
from tests.faults.test_logins import LOGIN, SETTINGS, put_user

READ, WRITE = Operation.READ, Operation.WRITE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
# Kafka allows any of these in a name; ACLs, logs and SCRAM each treat some of them differently.
ODD = [
    'o\'Brien, "Bob"',
    "a:b;c=d,e",
    "=2C=3D",
    "\u00fcn\u00ef\u0107\u00f8d\u00e9 \U0001f600",
    " space ",
    "User:alice",
    "*",
]


@pytest.fixture
def settings() -> dict[str, Any]:
    """The operator is any client without a login."""
    return SETTINGS | {"authorizer_class_name": "acl", "super_users": "User:ANONYMOUS"}


class Operator:
    def __init__(self, faults: Faults) -> None:
        self.raw = faults.connect()

    def allow(
        self,
        user: str,
        operation: Operation,
        kind: ResourceType,
        name: str,
        *,
        permission: Permission = Permission.ALLOW,
    ) -> None:
        creation = {
            "resource_type": int(kind),
            "resource_name": name,
            "resource_pattern_type": int(PatternType.LITERAL),
            "principal": f"User:{user}",
            "host": "*",
            "operation": int(operation),
            "permission_type": int(permission),
        }
        answer = self.raw.ask(ApiKey.CREATE_ACLS, 3, creations=[creation])
        assert not answer.results[0].error_code, answer

    def revoke(self, user: str, operation: Operation = Operation.ANY) -> int:
        """Returns the number of deleted ACLs."""
        filters = {
            "resource_type_filter": int(ResourceType.ANY),
            "resource_name_filter": None,
            "pattern_type_filter": int(PatternType.ANY),
            "principal_filter": f"User:{user}",
            "host_filter": None,
            "operation": int(operation),
            "permission_type": int(Permission.ANY),
        }
        [result] = self.raw.ask(ApiKey.DELETE_ACLS, 3, filters=[filters]).filter_results
        assert not result.error_code
        return len(result.matching_acls)


@pytest.fixture
def operator(faults: Faults) -> Operator:
    put_user(faults)
    return Operator(faults)


@pytest.fixture
def alice(operator: Operator, faults: Faults) -> Raw:
    raw = faults.connect(listener=LOGIN)
    assert not log_in(raw).error_code
    return raw


def write(raw: Raw, topic: str) -> int:
    raw.send(produce(topic, b"value"))
    _, body = control.parse_response(ApiKey.PRODUCE, 7, raw.frame())
    return int(body.responses[0].partition_responses[0].error_code)


def read(raw: Raw, topic: str) -> int:
    raw.send(fetch(topic))
    _, body = control.parse_response(ApiKey.FETCH, 11, raw.frame())
    return int(body.responses[0].partitions[0].error_code)


def test_revoked_right_stops_next_request_of_live_connection(faults: Faults, operator: Operator, alice: Raw) -> None:
    denied = ErrorCode.topic_authorization_failed
    assert write(alice, faults.topic) == denied
    for _ in range(3):
        operator.allow(USER, WRITE, TOPIC, faults.topic)
        assert write(alice, faults.topic) == 0
        assert read(alice, faults.topic) == denied
        assert operator.revoke(USER, WRITE) == 1
        assert write(alice, faults.topic) == denied


def test_a_denial_beats_what_is_allowed_at_once(faults: Faults, operator: Operator, alice: Raw) -> None:
    operator.allow("*", WRITE, TOPIC, "*")
    assert write(alice, faults.topic) == 0
    operator.allow(USER, Operation.ALL, TOPIC, faults.topic, permission=Permission.DENY)
    assert write(alice, faults.topic) == ErrorCode.topic_authorization_failed
    operator.revoke(USER)
    assert write(alice, faults.topic) == 0


def test_member_learns_of_lost_right_at_next_heartbeat(faults: Faults, operator: Operator, alice: Raw) -> None:
    def join() -> Any:
        return alice.ask(
            ApiKey.JOIN_GROUP,
            3,
            group_id="group",
            session_timeout=30_000,
            rebalance_timeout=30_000,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )

    def heartbeat(member: Any) -> int:
        fields = {"group_id": "group", "generation_id": member.generation_id, "member_id": member.member_id}
        return int(alice.ask(ApiKey.HEARTBEAT, 3, **fields).error_code)

    assert join().error_code == ErrorCode.group_authorization_failed
    operator.allow(USER, READ, GROUP, "group")
    member = join()
    assert not member.error_code
    assignment = [{"member_id": member.member_id, "assignment": b"all"}]
    fields = {"group_id": "group", "generation_id": member.generation_id, "member_id": member.member_id}
    assert not alice.ask(ApiKey.SYNC_GROUP, 3, **fields, assignments=assignment).error_code
    assert heartbeat(member) == 0
    operator.revoke(USER)
    assert heartbeat(member) == ErrorCode.group_authorization_failed
    operator.allow(USER, READ, GROUP, "group")
    assert heartbeat(member) == 0


@pytest.mark.parametrize("user", ODD)
def test_user_with_odd_name_has_only_its_rights(faults: Faults, operator: Operator, user: str) -> None:
    assert set(put_user(faults, user)) == {0}
    raw = faults.connect(listener=LOGIN)
    assert not log_in(raw, "SCRAM-SHA-256", user).error_code
    operator.allow(USER, WRITE, TOPIC, faults.topic)
    denied = ErrorCode.topic_authorization_failed
    assert write(raw, faults.topic) == denied
    operator.allow(user, WRITE, TOPIC, faults.topic)
    assert write(raw, faults.topic) == 0
    other = faults.connect(listener=LOGIN)
    assert not log_in(other, "PLAIN", user).error_code
    assert write(other, faults.topic) == 0
    assert read(other, faults.topic) == denied


def test_forbidden_resources_look_like_missing_ones(faults: Faults, operator: Operator, alice: Raw) -> None:
    for name in (faults.topic, "no-such-topic"):
        assert write(alice, name) == ErrorCode.topic_authorization_failed
        answer = alice.ask(ApiKey.METADATA, 8, topics=[{"name": name}], allow_auto_topic_creation=False)
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.topic_authorization_failed]
    assert not alice.ask(ApiKey.METADATA, 8, topics=None, allow_auto_topic_creation=False).topics
    assert not alice.ask(ApiKey.LIST_GROUPS, 4).groups
