"""Policies in a real catalogue, and how they are inherited."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import StorageError
from broker.metadata.sqlite import SqliteCatalogue
from broker.pulsar.policies.policies import (
    BROKER,
    BacklogQuota,
    Policies,
    Rate,
    Retention,
    WhenFull,
    decode,
    encode,
)
from broker.pulsar.policies.store import KIND, PolicyStore
from broker.pulsar.schemas.compatibility import Strategy
from tests.pulsar.two_nodes import TwoNodes

TOPIC, OTHER = UUID(int=1), UUID(int=2)
NAMESPACE = "public/default"


class Opened:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.topics = {TOPIC, OTHER}
        self.catalogue = SqliteCatalogue(str(path / "catalogue.db"))
        self.store = PolicyStore(self.catalogue)

    def again(self) -> PolicyStore:
        self.catalogue.close()
        self.catalogue = SqliteCatalogue(str(self._path / "catalogue.db"))
        self.store = PolicyStore(self.catalogue)
        self.store.load(self.topics.__contains__)
        return self.store


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


def test_topic_policies_default_to_namespace_then_broker(opened: Opened) -> None:
    store = opened.store
    assert BROKER == store.of(NAMESPACE, TOPIC)
    store.set_namespace(NAMESPACE, message_ttl_s=60, max_consumers=5)
    store.set_topic(TOPIC, message_ttl_s=0)
    for one in (store, opened.again()):
        assert (0, 5) == (one.of(NAMESPACE, TOPIC).message_ttl_s, one.of(NAMESPACE, TOPIC).max_consumers)
        assert 60 == one.of(NAMESPACE, OTHER).message_ttl_s
        assert 0 == one.of("other/ns", OTHER).message_ttl_s
        assert Policies(message_ttl_s=0) == one.topic(TOPIC)


def test_a_policy_that_is_removed_is_inherited_again(opened: Opened) -> None:
    store = opened.store
    store.set_namespace(NAMESPACE, deduplication=True)
    store.set_topic(TOPIC, deduplication=False)
    assert store.of(NAMESPACE, TOPIC).deduplication is False
    store.set_topic(TOPIC, deduplication=None)
    assert store.of(NAMESPACE, TOPIC).deduplication is True
    assert [f"namespace/{NAMESPACE}"] == [key for key, _ in opened.catalogue.load_documents(KIND)]
    store.remove_namespace(NAMESPACE)
    assert BROKER == store.of(NAMESPACE, TOPIC) == opened.again().of(NAMESPACE, TOPIC)


def test_deleted_topic_loses_its_policies(opened: Opened) -> None:
    store = opened.store
    store.set_topic(TOPIC, max_producers=1)
    store.set_topic(OTHER, max_producers=1)
    store.forget(TOPIC)
    assert Policies() == store.topic(TOPIC)
    opened.topics = {TOPIC}  # the other topic was deleted while the broker was down
    assert Policies() == opened.again().topic(OTHER)
    assert [] == list(opened.catalogue.load_documents(KIND))


def test_listeners_hear_changes_once_in_force(opened: Opened) -> None:
    seen = []
    opened.store.on_change.append(lambda: seen.append(opened.store.of(NAMESPACE, TOPIC).max_consumers))
    opened.store.set_namespace(NAMESPACE, max_consumers=3)
    opened.store.set_topic(TOPIC, max_consumers=4)
    assert [3, 4] == seen


def test_there_is_no_policy_of_another_name(opened: Opened) -> None:
    with pytest.raises(TypeError):
        opened.store.set_topic(TOPIC, nonsense=1)


NUMBERS = st.none() | st.integers(-1, 2**40)
RATES = st.none() | st.builds(Rate, st.integers(-1, 10**9), st.integers(-1, 10**9), st.integers(1, 100))
POLICIES = st.builds(
    Policies,
    retention=st.none() | st.builds(Retention, st.integers(-1, 10**9), st.integers(-1, 10**9)),
    message_ttl_s=NUMBERS,
    backlog_quota=st.none()
    | st.builds(BacklogQuota, st.integers(-1, 2**60), st.integers(-1, 10**9), st.sampled_from(WhenFull)),
    deduplication=st.none() | st.booleans(),
    dispatch_rate=RATES,
    subscription_dispatch_rate=RATES,
    publish_rate=RATES,
    schema_compatibility=st.none() | st.sampled_from(Strategy),
)


@given(POLICIES)
def test_what_is_stored_is_what_is_read(policies: Policies) -> None:
    assert policies == decode(encode(policies))


@given(POLICIES, POLICIES)
def test_what_is_set_goes_over_what_is_not(one: Policies, other: Policies) -> None:
    both = one.over(other)
    for name in ("retention", "message_ttl_s", "deduplication", "dispatch_rate"):
        value: Any = getattr(one, name)
        assert getattr(both, name) == (getattr(other, name) if value is None else value)


def test_field_of_later_version_is_ignored() -> None:
    assert Policies(message_ttl_s=5) == decode(b'{"message_ttl_s":5,"later":{"a":1}}')
    assert Policies(retention=Retention(1)) == decode(b'{"retention":{"minutes":1,"later":2}}')


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b'{"retention":5}', b'{"schema_compatibility":"X"}'])
def test_unreadable_policies_are_a_storage_error(body: bytes) -> None:
    with pytest.raises(StorageError):
        decode(body)


def test_two_nodes_follow_the_same_policies(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(str(tmp_path / "catalogue.db"))
    cluster = TwoNodes(tmp_path)
    one, other = (PolicyStore(catalogue, nodes=node) for node in cluster.nodes)
    changed: list[int] = []
    other.on_change.append(lambda: changed.append(1))
    for store, reloads in zip((one, other), cluster.reloads, strict=True):
        reloads.append(store.reload)
    one.set_namespace(NAMESPACE, message_ttl_s=60)
    assert (60, [1]) == (other.of(NAMESPACE, TOPIC).message_ttl_s, changed)
    other.reload()
    assert [1] == changed  # nothing new
    other.set_namespace(NAMESPACE, max_consumers=5)  # and what the other one has set stays
    assert (60, 5) == (one.of(NAMESPACE, TOPIC).message_ttl_s, one.of(NAMESPACE, TOPIC).max_consumers)
    one.remove_namespace(NAMESPACE)
    assert BROKER == other.of(NAMESPACE, TOPIC)
