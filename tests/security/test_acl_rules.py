"""The rules against a slow model, and what a change of them costs and leaves alone."""

from functools import reduce
from operator import and_

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_rules import EVERYTHING, AclRules, bit, no_rules
from tests.security.acls import HOSTS, NAMES, OPERATIONS, PRINCIPALS, acls, is_allowed, is_any_allowed

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL


many = settings(max_examples=500)


@many
@given(
    st.lists(acls() | acls([TOPIC]), max_size=20),
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(HOSTS[1:]),
    st.sampled_from([*NAMES, "abcd", "zz", "", "*x"]),
    st.booleans(),
)
def test_every_operation_is_decided_like_the_model(
    given: list[Acl], principal: str, host: str, name: str, default: bool
) -> None:
    bits = no_rules(default).changed(given).decide(principal, host, TOPIC, name)
    expected = {
        operation for operation in OPERATIONS if is_allowed(given, principal, host, operation, TOPIC, name, default)
    }
    # Nobody asks for ALL: it stands for the others.
    assert expected - {ALL} == {operation for operation in OPERATIONS if bits & bit(operation)} - {ALL}


@many
@given(
    st.lists(acls([TOPIC]), max_size=20),
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(HOSTS[1:]),
    st.sampled_from([*NAMES, "zz"]),
    st.sampled_from([*NAMES, "zz"]),
    st.booleans(),
)
def test_second_name_allows_unless_denied_and_without_default(
    given: list[Acl], principal: str, host: str, name: str, alias: str, default: bool
) -> None:
    allowed, undenied = no_rules(default).changed(given).decide_by(principal, host, TOPIC, name, alias)
    of_first = no_rules(default).changed(given).decide(principal, host, TOPIC, name)
    of_other = no_rules(False).changed(given).decide(principal, host, TOPIC, alias)
    # An ALLOW of everything leaves only what is denied.
    neither_denies = reduce(
        and_,
        (
            no_rules(False)
            .changed([*given, Acl(TOPIC, one, LITERAL, principal, host, ALL, ALLOW)])
            .decide(principal, host, TOPIC, one)
            for one in (name, alias)
        ),
    )
    assert ((of_first | of_other) & neither_denies, neither_denies) == (allowed, undenied)
    assert of_first == no_rules(default).changed(given).decide_by(principal, host, TOPIC, name, None)[0]


@many
@given(
    st.lists(acls([TOPIC]), max_size=20),
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(HOSTS[1:]),
    st.sampled_from(OPERATIONS[1:]),
)
def test_any_resource_is_decided_like_the_model(
    given: list[Acl], principal: str, host: str, operation: Operation
) -> None:
    expected = is_any_allowed(given, principal, host, operation, TOPIC)
    assert expected == no_rules(True).changed(given).decide_any(principal, host, operation, TOPIC)


@given(st.lists(st.tuples(st.lists(acls(), max_size=8), st.lists(acls(), max_size=8)), max_size=6))
def test_changes_match_the_set_and_leave_old_rules(
    changes: list[tuple[list[Acl], list[Acl]]],
) -> None:
    rules, present = no_rules(True), set[Acl]()
    history = [(rules, frozenset(present))]
    for added, removed in changes:
        rules = rules.changed(added, removed)
        present = present - set(removed) | set(added)
        history.append((rules, frozenset(present)))
    for older, then in history:
        assert then == set(older)
        assert len(then) == older.count == len(list(older))
        assert all(acl in older for acl in then)


def test_acls_that_come_and_go_leave_nothing_behind() -> None:
    given = [acl("a"), acl("a", WRITE), acl("b", pattern=PREFIXED)]
    rules = no_rules(True).changed(given).changed([], given)
    assert not any(rules.clients.values())
    assert not any(patterns.literal or patterns.prefixed or patterns.lengths for patterns in rules.patterns.values())


def acl(name: str, operation: Operation = READ, permission: Permission = ALLOW, pattern: PatternType = LITERAL) -> Acl:
    return Acl(TOPIC, name, pattern, "User:alice", "*", operation, permission)


def may(operation: Operation, *given: Acl, name: str = "a", default: bool = False) -> bool:
    return bool(no_rules(default).changed(given).decide("User:alice", "::1", TOPIC, name) & bit(operation))


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER])
def test_use_implies_describe(operation: Operation) -> None:
    assert may(DESCRIBE, acl("a", operation))
    assert not may(Operation.DESCRIBE_CONFIGS, acl("a", operation))


def test_alter_configs_implies_describe_configs() -> None:
    assert may(Operation.DESCRIBE_CONFIGS, acl("a", Operation.ALTER_CONFIGS))
    assert not may(DESCRIBE, acl("a", Operation.ALTER_CONFIGS))


def test_a_denial_implies_nothing_and_wins() -> None:
    assert may(DESCRIBE, acl("a", DESCRIBE), acl("a", READ, DENY))
    assert not may(READ, acl("a"), acl("*", READ, DENY))
    assert not may(READ, acl("a"), acl("", READ, DENY, PREFIXED))
    assert not may(READ, acl("a"), acl("a", ALL, DENY))
    assert not may(DESCRIBE, acl("a", READ), acl("a", DESCRIBE, DENY))


def test_prefix_covers_itself_and_longer_names() -> None:
    prefix = acl("ab", pattern=PREFIXED)
    assert [False, True, True, False] == [may(READ, prefix, name=name) for name in ("a", "ab", "abc", "b")]
    assert may(READ, acl("", pattern=PREFIXED), name="")


@pytest.mark.parametrize("operation", [READ, ALL])
def test_name_allowed_and_denied_is_not_any_resource(operation: Operation) -> None:
    rules = no_rules(False).changed([acl("a"), acl("a", operation, DENY)])
    assert not rules.decide_any("User:alice", "h", READ, TOPIC)
    assert rules.changed([acl("b")]).decide_any("User:alice", "h", READ, TOPIC)


def test_the_default_is_for_what_no_acl_covers() -> None:
    assert may(READ, acl("b"), default=True)
    assert not may(WRITE, acl("a"), default=True)
    somebody_else = Acl(TOPIC, "a", PREFIXED, "User:bob", "*", READ, ALLOW)
    assert not may(READ, somebody_else, default=True)
    assert EVERYTHING == no_rules(True).decide("User:x", "h", CLUSTER, "kafka-cluster")


def test_change_shares_the_untouched_tables() -> None:
    others = [Acl(GROUP, str(number), LITERAL, "User:bob", "*", READ, ALLOW) for number in range(100)]
    before = no_rules(True).changed([acl("a"), *others])
    after = before.changed([acl("b")])
    assert after.clients[GROUP] is before.clients[GROUP]


def test_a_decision_looks_at_no_unrelated_acl() -> None:
    """Counted by the tables that are asked: as many for 1 ACL as for 10,000."""

    def tables_asked(count: int) -> int:
        others = [Acl(TOPIC, f"t{number}", PREFIXED, f"User:{number}", "*", READ, ALLOW) for number in range(count)]
        rules = no_rules(True).changed([acl("a"), *others])
        asked = []

        class Watched(dict):  # type: ignore[type-arg]
            def get(self, key: object, default: object = None) -> object:
                asked.append(key)
                return super().get(key, default)

            def __iter__(self):  # type: ignore[no-untyped-def]
                raise AssertionError("a decision walks the ACLs")

        watched = AclRules({TOPIC: Watched(rules.clients[TOPIC])}, rules.patterns, rules.count)
        assert watched.decide("User:alice", "h", TOPIC, "a") & bit(READ)
        return len(asked)

    assert tables_asked(0) == tables_asked(10_000) == 4
