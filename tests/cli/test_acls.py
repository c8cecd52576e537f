"""`broker acls`: which ACLs the options mean, and the commands against a broker with an authorizer."""

import json
from collections.abc import Iterator

import pytest

from broker.cli.acls import SUPPORTED, Selection, parse_operation
from broker.client import Broker
from broker.errors import ConfigError
from broker.security.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tests.cli.conftest import Run

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ID = ResourceType.TRANSACTIONAL_ID
ALICE = "User:alice"


def short(rules: list[Acl]) -> set[tuple[str, str, str]]:
    return {(acl.resource_type.name, acl.name, acl.operation.name) for acl in rules}


def test_each_combination_of_options_is_an_acl() -> None:
    rules = Selection(
        resources=((TOPIC, "a"), (GROUP, "g")),
        pattern=PatternType.PREFIXED,
        allowed=(ALICE,),
        denied=("User:*",),
        denied_hosts=("10.0.0.1", "10.0.0.2"),
        operations=(Operation.READ,),
    ).rules()
    expected = {
        Acl(kind, name, PatternType.PREFIXED, principal, host, Operation.READ, permission)
        for kind, name in ((TOPIC, "a"), (GROUP, "g"))
        for principal, host, permission in (
            (ALICE, "*", Permission.ALLOW),
            ("User:*", "10.0.0.1", Permission.DENY),
            ("User:*", "10.0.0.2", Permission.DENY),
        )
    }
    assert expected == set(rules)
    assert len(expected) == len(rules)


def test_default_is_all_operations_and_literal_cluster() -> None:
    rule = Selection(resources=((CLUSTER, CLUSTER_NAME),), pattern=PatternType.PREFIXED, allowed=(ALICE,)).rules()
    assert [Acl(CLUSTER, CLUSTER_NAME, PatternType.LITERAL, ALICE, "*", Operation.ALL, Permission.ALLOW)] == rule


def test_producer_and_consumer_rights_are_kafka_s() -> None:
    both = Selection(
        resources=((TOPIC, "t"), (GROUP, "g"), (ID, "i")),
        allowed=(ALICE,),
        producer=True,
        consumer=True,
        idempotent=True,
    ).rules()
    assert {
        *(("TOPIC", "t", name) for name in ("WRITE", "READ", "DESCRIBE", "CREATE")),
        ("GROUP", "g", "READ"),
        ("TRANSACTIONAL_ID", "i", "WRITE"),
        ("TRANSACTIONAL_ID", "i", "DESCRIBE"),
        ("CLUSTER", CLUSTER_NAME, "IDEMPOTENT_WRITE"),
    } == short(both)
    consumer = Selection(resources=((TOPIC, "t"), (GROUP, "g")), allowed=(ALICE,), consumer=True).rules()
    assert {("TOPIC", "t", "READ"), ("TOPIC", "t", "DESCRIBE"), ("GROUP", "g", "READ")} == short(consumer)


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(resources=((TOPIC, "t"),)), "Say for whom"),
        (Selection(allowed=(ALICE,)), "Say of what"),
        (Selection(resources=((TOPIC, "t"),), allowed=("alice",)), "TYPE:NAME"),
        (Selection(resources=((TOPIC, "t"),), allowed=(ALICE,), denied_hosts=("h",)), "--deny-principal"),
        (Selection(resources=((TOPIC, "t"),), pattern=PatternType.MATCH, allowed=(ALICE,)), "literal or prefixed"),
        (
            Selection(resources=((GROUP, "g"),), allowed=(ALICE,), operations=(Operation.WRITE,)),
            "--operation that a GROUP",
        ),
        (Selection(resources=((TOPIC, "t"),), allowed=(ALICE,), consumer=True), "Name a --group"),
        (Selection(resources=((GROUP, "g"),), allowed=(ALICE,), producer=True), "Name a --topic"),
        (Selection(resources=((TOPIC, "t"), (CLUSTER, "c")), allowed=(ALICE,), producer=True), "Leave out the CLUSTER"),
        (
            Selection(resources=((TOPIC, "t"),), allowed=(ALICE,), producer=True, operations=(Operation.READ,)),
            "Leave out --operation",
        ),
    ],
)
def test_nonsense_is_refused_in_one_sentence(selection: Selection, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        selection.rules()


def test_to_remove_without_a_principal_means_everybody_s() -> None:
    everybody = Selection(resources=((TOPIC, "t"),)).filters()
    assert [(TOPIC, "t", PatternType.LITERAL, None, None, Operation.ANY, Permission.ANY)] == everybody
    hers = Selection(resources=((TOPIC, "t"),), allowed=(ALICE,), operations=(Operation.READ,)).filters()
    assert [(TOPIC, "t", PatternType.LITERAL, ALICE, "*", Operation.READ, Permission.ALLOW)] == hers


@pytest.mark.parametrize("operation", [one for one in Operation if one > Operation.ANY])
def test_operations_are_written_in_any_way(operation: Operation) -> None:
    words = operation.name.split("_")
    for text in (operation.name, operation.name.lower(), "".join(word.capitalize() for word in words), "-".join(words)):
        assert operation is parse_operation(text)


def test_unsupported_operations_are_refused_for_every_type() -> None:
    for text in ("", "Any", "Unknown", "Reed"):
        with pytest.raises(ConfigError, match="There is no operation"):
            parse_operation(text)
    assert {kind for kind in ResourceType if kind > ResourceType.ANY} == SUPPORTED.keys()


@pytest.fixture
def guarded() -> Iterator[str]:
    """The address of a broker with an authorizer, whose super user is everybody who comes."""
    with Broker(authorizer_class_name="acl", super_users="User:ANONYMOUS") as running:
        yield running.bootstrap_servers


def test_acls_are_added_listed_and_removed(run_alone: Run, guarded: str) -> None:
    def run(*arguments: str, fails: int = 0) -> list[str]:
        result = run_alone("acls", *arguments, "-b", guarded, fails=fails)
        return (result.stdout or result.stderr).decode().splitlines()

    added = run("add", "--allow-principal", "User:alice, the 1st", "--producer", "--topic", "orders")
    prefix = "topic\torders\tliteral\tUser:alice, the 1st\t*\t"
    assert {f"{prefix}{name}\tallow" for name in ("write", "describe", "create")} == set(added)
    (again,) = run("add", "--allow-principal", "User:alice, the 1st", "-o", "Write", "--topic", "orders",
        "--output", "json")  # fmt: skip
    assert ("orders", "write") == tuple(map(json.loads(again).get, ("name", "operation")))
    run("add", "--deny-principal", "User:*", "--deny-host", "10.0.0.1", "-o", "Read", "--group", "g",
        "--resource-pattern-type", "prefixed")  # fmt: skip
    assert 4 == len(run("list"))
    assert set(added) == set(run("list", "--topic", "orders"))
    assert 3 == len(run("list", "--principal", "User:alice, the 1st"))
    (denied,) = run("list", "--group", "group-of-mine", "--resource-pattern-type", "match", "--output", "json") or [""]
    assert denied == json.dumps(
        {
            "resource": "group",
            "name": "g",
            "pattern": "prefixed",
            "principal": "User:*",
            "host": "10.0.0.1",
            "operation": "read",
            "permission": "deny",
        }
    )
    assert 1 == len(run("remove", "--allow-principal", "User:alice, the 1st", "-o", "Create", "--topic", "orders"))
    assert 2 == len(run("remove", "--topic", "orders", "--force"))
    assert "There is no such ACL" in run("remove", "--topic", "orders", "--force", fails=1)[0]
    assert [denied.split('"')[7]] == [line.split("\t")[1] for line in run("list")]


def test_nothing_is_removed_for_everybody_without_an_answer(run_alone: Run, guarded: str) -> None:
    run_alone("acls", "add", "--allow-principal", ALICE, "--topic", "t", "-b", guarded)
    run_alone("acls", "remove", "--topic", "t", "-b", guarded, fails=130)
    assert 1 == run_alone("acls", "list", "-b", guarded).stdout.count(b"\n")


def test_a_broker_without_an_authorizer_says_so(run: Run) -> None:
    assert b"the broker has no authorizer" in run("acls", "list", fails=1).stderr
    added = run("acls", "add", "--allow-principal", ALICE, "--topic", "t", fails=1).stderr
    assert b"1 of 1 ACLs were not added: the broker has no authorizer" in added
