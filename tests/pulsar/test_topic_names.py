import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.refusals import InvalidTopicName
from broker.pulsar.topic_names import TopicName, check_legal, check_namespace, kafka_name, parse_topic, pulsar_name
from broker.storage.config import check_name, collision_key

ENTITIES = st.text("abzAZ09-_=:.", min_size=1, max_size=5)
LOCALS = st.one_of(
    st.text("ab.-_%/é\u20ac ", min_size=1, max_size=8).filter(lambda text: not text.startswith("/")),
    st.sampled_from(["..", ".", "pulsar.a.b.c", "pulsar.public.default.x", "a__2eb", "x-partition-3x"]),
)
NAMESPACES = st.one_of(st.just(("public", "default")), st.tuples(ENTITIES, ENTITIES))


@pytest.mark.parametrize(
    ("text", "whole", "in_kafka"),
    [
        ("x", "persistent://public/default/x", "x"),
        ("public/default/x", "persistent://public/default/x", "x"),
        ("persistent://public/default/x-partition-2", "persistent://public/default/x-partition-2", "x"),
        ("persistent://shop/eu/paid_orders", "persistent://shop/eu/paid_orders", "pulsar.shop.eu.paid__5forders"),
        ("persistent://public/default/a/b", "persistent://public/default/a/b", "pulsar.public.default.a__2fb"),
    ],
)
def test_names_as_clients_write_them(text: str, whole: str, in_kafka: str) -> None:
    name = parse_topic(text)
    assert (whole, in_kafka) == (str(name), kafka_name(name))


@pytest.mark.parametrize(
    "text", ["", "a/b", "persistent://a/b", "persistent://a//b", "queue://a/b/c", "persistent://a/b/", "p://a b/c/d"]
)
def test_what_is_not_the_name_of_a_topic(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        parse_topic(text)


@pytest.mark.parametrize("text", ["", "a", "a/", "/b", "a/b/c", "a/b c"])
def test_what_is_not_the_name_of_a_namespace(text: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_namespace(text)


def test_the_partition_is_the_number_at_the_end() -> None:
    name = parse_topic("orders-partition-12")
    assert ("orders", 12) == (name.local, name.partition)
    assert "orders-partition-12" == kafka_name(name.as_local)
    for text in ("orders-partition-", "orders-partition-01", "-partition-1", "orders-partition-1x"):
        assert -1 == parse_topic(text).partition


@given(NAMESPACES, LOCALS)
def test_pulsar_names_round_trip_through_kafka(namespace: tuple[str, str], local: str) -> None:
    name = TopicName(*namespace, local)
    in_kafka = kafka_name(name)
    check_name(in_kafka)
    assert name == pulsar_name(in_kafka)


@given(NAMESPACES, LOCALS, NAMESPACES, LOCALS)
def test_no_two_topics_share_a_name_in_kafka(
    namespace: tuple[str, str], local: str, other_namespace: tuple[str, str], other_local: str
) -> None:
    name, other = TopicName(*namespace, local), TopicName(*other_namespace, other_local)
    assert (name == other) == (kafka_name(name) == kafka_name(other))
    both = {kafka_name(name), kafka_name(other)}
    if name != other and all(each.startswith("pulsar.") for each in both):
        # Kafka does not allow two topics whose names differ in "." and "_" only.
        assert 2 == len({collision_key(each) for each in both})


@given(st.text("abpulsr._-25fe", min_size=1, max_size=20).filter(lambda text: text not in (".", "..")))
def test_kafka_names_round_trip_through_pulsar(topic: str) -> None:
    assert topic == kafka_name(pulsar_name(topic))


def test_name_too_long_for_kafka_is_refused() -> None:
    with pytest.raises(InvalidTopicName):
        check_legal(kafka_name(parse_topic("persistent://public/default/" + "/" * 100)))
