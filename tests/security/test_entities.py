"""Whom quotas are for: text and back, and Kafka's precedence against a slow model."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security import client_quotas
from broker.security.client_quotas import ABSENT, DEFAULT, Entity, parse_entity, precedence

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
PARTS = st.one_of(st.none(), st.just(DEFAULT), NAMES)


@given(user=PARTS, client_id=PARTS)
def test_an_entity_is_what_its_text_says(user: str | None, client_id: str | None) -> None:
    entity = Entity(user, client_id)
    if entity != Entity():
        assert parse_entity(str(entity)) == entity


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        (Entity("alice", DEFAULT), "user=alice,client-id=<default>"),
        (Entity("<default>"), "user=%3Cdefault%3E"),
        (Entity(client_id="a=b,c"), "client-id=a%3Db%2Cc"),
        (Entity(ip="::1"), "ip=%3A%3A1"),
    ],
)
def test_the_text_in_the_catalogue(entity: Entity, text: str) -> None:
    assert str(entity) == text
    assert parse_entity(text) == entity


def test_order_is_that_of_table_and_docstring() -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in (client_quotas.__doc__ or "").splitlines()
        if line.startswith("| ") and line[2].isdigit()
    ]
    part = {"its own": lambda own: own, "default": lambda _: DEFAULT, "-": lambda _: ABSENT}
    shared = {
        "the connections of this user with this client id": ("u", "c"),
        "all connections of this user": ("u", ABSENT),
        "the connections of all users with this client id": (ABSENT, "c"),
    }
    drawn = [((part[user]("u"), part[client]("c")), shared[by]) for _, user, client, by in rows]
    assert drawn == list(precedence("u", "c"))
    assert [row[0] for row in rows] == [str(number + 1) for number in range(8)]


def test_exact_user_precedes_exact_client_id() -> None:
    """Kafka's order said in another way: by how exact the user is, then the client id; and users before client ids alone."""

    def rank(pair: tuple[str | None, str | None]) -> tuple[int, int]:
        user, client = pair
        return ("u", DEFAULT, ABSENT).index(user), ("c", DEFAULT, ABSENT).index(client)

    everything = [
        pair
        for pair in itertools.product(("u", DEFAULT, ABSENT), ("c", DEFAULT, ABSENT))
        if any(p is not None for p in pair)
    ]
    assert [pair for pair, _ in precedence("u", "c")] == sorted(everything, key=rank)
