"""Which ACLs a filter means, and which ACLs can be created."""

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_rules import TEXT_MAX, AclFilter, InvalidAcl, check_new, no_rules
from tests.security.acls import HOSTS, NAMES, PRINCIPALS, acls

GOOD = Acl(ResourceType.TOPIC, "abc", PatternType.LITERAL, "User:alice", "10.0.0.1", Operation.READ, Permission.ALLOW)
PREFIX = attrs.evolve(GOOD, name="ab", pattern=PatternType.PREFIXED)
WILDCARD = attrs.evolve(GOOD, name="*")


def test_the_default_filter_matches_everything() -> None:
    assert all(AclFilter().matches(acl) for acl in (GOOD, PREFIX, WILDCARD))


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (PatternType.LITERAL, "abc", [GOOD]),
        (PatternType.LITERAL, "ab", []),
        (PatternType.LITERAL, None, [GOOD, WILDCARD]),
        (PatternType.LITERAL, "*", [WILDCARD]),
        (PatternType.PREFIXED, "ab", [PREFIX]),
        (PatternType.PREFIXED, "abc", []),
        (PatternType.ANY, "ab", [PREFIX]),
        (PatternType.MATCH, "abc", [GOOD, PREFIX, WILDCARD]),
        (PatternType.MATCH, "abx", [PREFIX, WILDCARD]),
        (PatternType.MATCH, "x", [WILDCARD]),
        (PatternType.MATCH, None, [GOOD, PREFIX, WILDCARD]),
    ],
)
def test_names_and_patterns_match_as_in_kafka(pattern: PatternType, name: str | None, expected: list[Acl]) -> None:
    wanted = AclFilter(name=name, pattern=pattern)
    assert expected == [acl for acl in (GOOD, PREFIX, WILDCARD) if wanted.matches(acl)]


@pytest.mark.parametrize(
    "other",
    [
        AclFilter(resource_type=ResourceType.GROUP),
        AclFilter(principal="User:bob"),
        AclFilter(host="*"),
        AclFilter(operation=Operation.ALL),
        AclFilter(permission=Permission.DENY),
    ],
)
def test_another_value_does_not_match(other: AclFilter) -> None:
    assert not other.matches(GOOD)


def test_a_host_matches_in_each_of_its_spellings() -> None:
    assert AclFilter(host="::ffff:10.0.0.1").matches(GOOD)


filters = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP]),
    st.none() | st.sampled_from(NAMES),
    st.sampled_from([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]),
    st.none() | st.sampled_from(PRINCIPALS),
    st.none() | st.sampled_from(HOSTS),
)


@given(st.lists(acls(), max_size=20), filters)
def test_the_candidates_have_all_that_match(given: list[Acl], wanted: AclFilter) -> None:
    candidates = list(wanted.candidates(no_rules(False).changed(given)))
    assert len(set(candidates)) == len(candidates)
    assert {acl for acl in given if wanted.matches(acl)} == {acl for acl in candidates if wanted.matches(acl)}


def test_filter_of_a_client_walks_only_its_acls() -> None:
    asked = []

    class Watched:
        def of_client(self, *client: Any) -> Iterator[Acl]:
            asked.append(client)
            return iter([])

    one = ResourceType.TOPIC, "a", PatternType.LITERAL, "User:alice", "*"
    for wanted in (AclFilter(*one), AclFilter(one[0], "a", PatternType.MATCH, *one[3:])):
        assert [] == list(wanted.candidates(Watched()))  # type: ignore[arg-type]
    assert [(ResourceType.TOPIC, "User:alice", "*", "a"), (ResourceType.TOPIC, "User:alice", "*", None)] == asked


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"resource_type": ResourceType.UNKNOWN}, "resource type"),
        ({"pattern": PatternType.UNKNOWN}, "pattern type"),
        ({"operation": Operation.UNKNOWN}, "operation"),
        ({"permission": Permission.UNKNOWN}, "permission"),
    ],
)
def test_a_filter_with_unknown_values_is_refused(field: dict[str, Any], words: str) -> None:
    AclFilter().check()
    with pytest.raises(InvalidAcl, match=f"unknown {words}"):
        AclFilter(**field).check()


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"resource_type": ResourceType.UNKNOWN}, "type of a resource"),
        ({"resource_type": ResourceType.ANY}, "type of a resource"),
        ({"resource_type": ResourceType.CLUSTER}, "kafka-cluster"),
        ({"pattern": PatternType.UNKNOWN}, "LITERAL or PREFIXED"),
        ({"pattern": PatternType.ANY}, "LITERAL or PREFIXED"),
        ({"pattern": PatternType.MATCH}, "LITERAL or PREFIXED"),
        ({"operation": Operation.UNKNOWN}, "an operation"),
        ({"operation": Operation.ANY}, "an operation"),
        ({"permission": Permission.UNKNOWN}, "DENY or ALLOW"),
        ({"permission": Permission.ANY}, "DENY or ALLOW"),
        ({"name": ""}, "the name of a resource"),
        ({"principal": ""}, "TYPE:NAME"),
        ({"principal": "alice"}, "TYPE:NAME"),
        ({"principal": ":alice"}, "TYPE:NAME"),
        ({"principal": "User:"}, "TYPE:NAME"),
        ({"host": ""}, "address of a host"),
        ({"name": "x" * (TEXT_MAX + 1)}, "within 1024"),
        ({"principal": "User:" + "x" * TEXT_MAX}, "within 1024"),
        ({"host": "x" * (TEXT_MAX + 1)}, "within 1024"),
        *(({field: "User:\ud800"}, "UTF-8") for field in ("name", "principal", "host")),
    ],
)
def test_invalid_acl_cannot_be_created(field: dict[str, Any], words: str) -> None:
    check_new(GOOD)
    with pytest.raises(InvalidAcl, match=words):
        check_new(attrs.evolve(GOOD, **field))


def test_the_cluster_has_one_name() -> None:
    check_new(attrs.evolve(GOOD, resource_type=ResourceType.CLUSTER, name="kafka-cluster"))
