import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.security import KINDS_MAX, OTHER, ClientSoftware, Software, is_valid


@pytest.mark.parametrize("text", ["a", "librdkafka", "apache-kafka-java", "3.7.0", "1.0-SNAPSHOT", "a..b"])
def test_names_that_kafka_accepts(text: str) -> None:
    assert is_valid(text, text)


@pytest.mark.parametrize("text", ["", "-a", "a-", ".a", "a.", "a b", "a_b", "é", "a\n", "\0"])
def test_names_that_kafka_refuses(text: str) -> None:
    assert not is_valid("a", text)
    assert not is_valid(text, "1")


def test_the_table_is_bounded() -> None:
    software = ClientSoftware()
    entered = [software.enter("client", str(number)) for number in range(2 * KINDS_MAX)]
    assert len(software.read()) <= KINDS_MAX + 1
    assert 2 * KINDS_MAX == sum(software.read().values())
    for each in entered:
        software.leave(each)
    assert {} == software.read()


def test_a_long_name_is_counted_without_it() -> None:
    assert OTHER == ClientSoftware().enter("a" * 101, "1") == ClientSoftware().enter("a", "1" * 30_000)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
def test_every_connection_is_counted_until_it_leaves(steps: list[tuple[str, bool]]) -> None:
    software = ClientSoftware()
    present: list[Software] = []
    for name, comes in steps:
        if comes:
            present.append(software.enter(name, "1"))
        elif present:
            software.leave(present.pop())
        assert {each: float(present.count(each)) for each in set(present)} == software.read()
