"""Which node has what, by names alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.nodes import coordinator_of, owner_of, transaction_key


@given(topic=st.text(), count=st.integers(1, 64))
def test_neighbouring_partitions_are_at_different_nodes(topic: str, count: int) -> None:
    assert list(range(count)) == sorted(owner_of(topic, partition, count) for partition in range(count))


@given(count=st.integers(1, 64))
def test_ids_with_the_same_text_in_braces_are_coordinated_together(count: int) -> None:
    together = {coordinator_of(name, count) for name in ("{a}", "{a}-1", "x{a}{b}", "a")}
    assert 1 == len(together)


@pytest.mark.parametrize(
    ("transactional_id", "key"),
    [
        ("spark-query/3/0", "spark-query"),
        ("spark-query", "spark-query"),
        ("a/b/c", "a"),
        ("/b", "/b"),
        ("x/{a}/1", "x/{a}/1"),
        ("", ""),
    ],
)
def test_the_producers_of_a_job_have_one_coordinator(transactional_id: str, key: str) -> None:
    assert key == transaction_key(transactional_id)
