"""Users with ACLs, end to end: they log in, and what they may do changes under their open connections."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from broker.security.acl import Operation, PatternType, Permission, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import join_fields
from tests.kafka.required_rights import ROWS, Names
from tests.kafka.sasl_client import Connection, SaslBroker
from tests.waiting import wait_for

READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ROW = {row.id: row for row in ROWS}
MECHANISM = "SCRAM-SHA-256"
ODD_NAMES = [
    "CN=alice,OU=ops:eu,O=Example\\, Inc.",
    "User:admin",
    "admin ",
    "Admin",
    "alice;User:admin",
    "a b\tc\"d'e",
    "\u00fcml\u00e4ut-\u4f60\u597d",
    "line\nbreak\x1b[31m",
    "**",
]


class Users:
    """Connections of users to one broker; ``admin`` may do everything."""

    def __init__(self, broker: SaslBroker) -> None:
        self.broker = broker
        self._stack = ExitStack()
        self.admin = self.connect("admin")

    def connect(self, user: str) -> Connection:
        self.broker.add(user, MECHANISM, "secret")
        connection = self._stack.enter_context(self.broker.connect())
        assert connection.log_in(MECHANISM, user, "secret").error_code == 0
        return connection

    def close(self) -> None:
        self._stack.close()

    def allow(self, user: str, operation: Operation, kind: ResourceType, name: str, **how: int) -> None:
        creation = {
            "resource_type": int(kind),
            "resource_name": name,
            "resource_pattern_type": int(how.get("pattern", PatternType.LITERAL)),
            "principal": f"User:{user}",
            "host": "*",
            "operation": int(operation),
            "permission_type": int(how.get("permission", Permission.ALLOW)),
        }
        (result,) = self.admin.ask(ApiKey.CREATE_ACLS, 3, creations=[creation]).results
        assert result.error_code == 0, result

    def revoke(self, user: str, operation: Operation, kind: ResourceType, name: str) -> None:
        wanted = {
            "resource_type_filter": int(kind),
            "resource_name_filter": name,
            "pattern_type_filter": int(PatternType.LITERAL),
            "principal_filter": f"User:{user}",
            "host_filter": "*",
            "operation": int(operation),
            "permission_type": int(Permission.ALLOW),
        }
        (result,) = self.admin.ask(ApiKey.DELETE_ACLS, 3, filters=[wanted]).filter_results
        assert [acl.error_code for acl in result.matching_acls] == [0]

    def topic(self, name: str) -> str:
        self.broker.server.kafka.logs.create_topic(name, 1)
        return name


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    settings = {
        "authorizer_class_name": "acl",
        "super_users": "User:admin",
        "group_min_session_timeout_ms": 100,
        "group_initial_rebalance_delay_ms": 0,
    }
    with SaslBroker(**settings) as broker:
        users = Users(broker)
        yield users
        users.close()


def ask(connection: Connection, what: str, topic: str = "", group: str = "") -> Any:
    row = ROW[what]
    key_version = {"produce": 9, "fetch": 11, "metadata": 9, "metadata-all": 9, "heartbeat": 4, "offset_commit": 8}
    return connection.ask(row.key, key_version[what], **row.fields(Names(topic, group, "")))


def produce(connection: Connection, topic: str) -> int:
    return int(ask(connection, "produce", topic).responses[0].partition_responses[0].error_code)


def fetch(connection: Connection, topic: str) -> int:
    return int(ask(connection, "fetch", topic).responses[0].partitions[0].error_code)


def shown(connection: Connection) -> set[str]:
    return {topic.name for topic in ask(connection, "metadata-all").topics}


def test_revoked_acl_stops_a_live_connections_next_request(users: Users) -> None:
    topic = users.topic("revoked")
    alice = users.connect("alice")
    refused = ErrorCode.topic_authorization_failed
    for _ in range(3):
        assert (produce(alice, topic), fetch(alice, topic), topic in shown(alice)) == (refused, refused, False)
        users.allow("alice", WRITE, TOPIC, topic)
        assert (produce(alice, topic), fetch(alice, topic), topic in shown(alice)) == (0, refused, True)
        users.allow("alice", READ, TOPIC, topic)
        users.revoke("alice", WRITE, TOPIC, topic)
        assert (produce(alice, topic), fetch(alice, topic), topic in shown(alice)) == (refused, 0, True)
        users.revoke("alice", READ, TOPIC, topic)


def test_a_denial_wins_at_once(users: Users) -> None:
    topic = users.topic("denied")
    bob = users.connect("bob")
    users.allow("*", ALL, TOPIC, "den", pattern=PatternType.PREFIXED)
    assert produce(bob, topic) == 0
    users.allow("bob", WRITE, TOPIC, topic, permission=Permission.DENY)
    assert produce(bob, topic) == ErrorCode.topic_authorization_failed
    assert fetch(bob, topic) == 0


@pytest.mark.parametrize("name", ODD_NAMES)
def test_principal_with_odd_characters_matches_exactly(users: Users, name: str) -> None:
    topic = users.topic(f"odd-{ODD_NAMES.index(name)}")
    odd, plain = users.connect(name), users.connect("plain")
    assert produce(odd, topic) == ErrorCode.topic_authorization_failed
    assert topic not in shown(odd)
    users.allow(name, WRITE, TOPIC, topic)
    assert produce(odd, topic) == 0
    assert topic in shown(odd)
    assert produce(plain, topic) == ErrorCode.topic_authorization_failed
    assert topic not in shown(plain)


# -- groups -------------------------------------------------------------------------------------------------------------


def join(connection: Connection, group: str, member_id: str = "") -> Any:
    return connection.ask(ApiKey.JOIN_GROUP, 9, **join_fields(group, member_id, session_timeout=300_000))


def heartbeat(connection: Connection, group: str, member_id: str, generation: int) -> int:
    fields = {"group_id": group, "generation_id": generation, "member_id": member_id}
    return int(connection.ask(ApiKey.HEARTBEAT, 4, **fields).error_code)


def sync(connection: Connection, group: str, member_id: str, generation: int) -> int:
    fields = {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member_id, "assignment": b"all"}],
    }
    return int(connection.ask(ApiKey.SYNC_GROUP, 5, **fields).error_code)


def test_member_without_rights_drops_out_of_its_group(users: Users) -> None:
    """It is refused, as any stranger; and the group learns of it as of any member that sends no heartbeats."""
    group = "workers"
    carol, dave = users.connect("carol"), users.connect("dave")
    for user in ("carol", "dave"):
        users.allow(user, READ, GROUP, group)
    carols = join(carol, group).member_id
    assert join(carol, group, carols).generation_id == 1
    assert sync(carol, group, carols, 1) == 0
    daves = join(dave, group).member_id
    # Dave's join is answered when Carol has joined again. His session ends soon after that.
    dave.tell(ApiKey.JOIN_GROUP, 9, **join_fields(group, daves, session_timeout=3_000))
    wait_for(lambda: heartbeat(carol, group, carols, 1) == ErrorCode.rebalance_in_progress)
    assert join(carol, group, carols).generation_id == 2
    assert dave.answer(ApiKey.JOIN_GROUP, 9).generation_id == 2
    sync(carol, group, carols, 2)

    users.revoke("dave", READ, GROUP, group)
    assert heartbeat(dave, group, daves, 2) == ErrorCode.group_authorization_failed
    assert join(dave, group, daves).error_code == ErrorCode.group_authorization_failed
    wait_for(lambda: heartbeat(carol, group, carols, 2) == ErrorCode.rebalance_in_progress)
    again = join(carol, group, carols)
    assert (again.error_code, again.generation_id, len(again.members)) == (0, 3, 1)
    assert sync(carol, group, carols, 3) == heartbeat(carol, group, carols, 3) == 0
