"""Checks find what is wrong, and nothing else: against models, and against known violations."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.client import Broker, checks
from broker.client.checks import Place, Progress, Rebalances

values = st.integers(0, 5)
few = st.lists(values, max_size=8)


class Message:
    """As confluent-kafka's: methods, no attributes."""

    def __init__(
        self, partition: int, offset: int, value: object = b"v", key: object = None, topic: str = "orders"
    ) -> None:
        self._fields = {"topic": topic, "partition": partition, "offset": offset, "key": key, "value": value}

    def __getattr__(self, name: str) -> Any:
        if name == "_fields" or name not in self._fields:
            raise AttributeError(name)
        return lambda: self._fields[name]


class Plain(NamedTuple):
    """As kafka-python's and aiokafka's: attributes."""

    topic: str
    partition: int
    offset: int
    key: object
    value: object


def fails(check: Any, *args: Any, **options: Any) -> str:
    """What the check complains of; "" if nothing."""
    try:
        check(*args, **options)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Broker:
    running.reset()
    running.create_topic("orders", 2)
    return running


# -- inputs and outputs -----------------------------------------------------------------------------------------------


@given(few, few)
def test_at_least_once_is_what_counting_says(inputs: list[int], outputs: list[int]) -> None:
    went_in, came_out = Counter(inputs), Counter(outputs)
    is_right = went_in <= came_out and came_out.keys() <= went_in.keys()
    assert is_right == (not fails(checks.processed_at_least_once, inputs, outputs))


@given(few, few)
def test_exactly_once_is_what_counting_says(inputs: list[int], outputs: list[int]) -> None:
    assert (Counter(inputs) == Counter(outputs)) == (not fails(checks.processed_exactly_once, inputs, outputs))


def test_message_names_each_record_and_its_place() -> None:
    inputs = [Plain("orders", 0, n, None, value) for n, value in enumerate([b"a", b"b", b"b", b"c"])]
    outputs = [Message(1, 7, b"a"), Message(1, 8, b"b"), Message(1, 9, b"c"), Message(0, 3, b"c"), b"d"]
    assert [
        "Of 4 inputs, 1 did not come out: b'b' (orders[0] at 2, 1 of 2 times).",
        "1 came out more often than they went in: b'c' (2 times for 1: orders[1] at 9, orders[0] at 3).",
        "1 that came out never went in: b'd' (number 4).",
    ] == fails(checks.processed_exactly_once, inputs, outputs).splitlines()
    assert [
        "Of 4 inputs, 1 did not come out: b'b' (orders[0] at 2, 1 of 2 times).",
        "1 that came out never went in: b'd' (number 4).",
    ] == fails(checks.processed_at_least_once, inputs, outputs).splitlines()


def test_output_may_stand_for_another_input() -> None:
    assert "" == fails(checks.processed_exactly_once, ["a", "b"], ["A", "B"], of=str.lower)
    assert "'a' (number 0)" in fails(checks.processed_exactly_once, ["a", "b"], ["A", "B"])


def test_long_list_is_cut() -> None:
    said = fails(checks.processed_at_least_once, range(100), [])
    assert said.startswith("Of 100 inputs, 100 did not come out: 0 (number 0), 1 (number 1), ")
    assert said.endswith("9 (number 9), and 90 more.")
    assert 200 > len(fails(checks.processed_at_least_once, ["x" * 10_000], []))


def first_times(outputs: list[Any]) -> list[Any]:
    return list(dict.fromkeys(outputs))


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=10))
def test_order_per_key_is_that_of_first_times(inputs: list[int], outputs: list[int]) -> None:
    key = lambda value: value % 2  # noqa: E731
    is_right = all(
        [each for each in first_times(outputs) if key(each) == which]
        == [each for each in inputs if key(each) == which and each in outputs]
        for which in (0, 1)
    )
    assert is_right == (not fails(checks.in_order_per_key, inputs, outputs, key=key))


def test_message_names_the_key_and_both_records() -> None:
    inputs = [Plain("orders", 0, n, b"k", value) for n, value in enumerate([b"1", b"2", b"3"])]
    outputs = [Message(0, 0, b"1"), Message(0, 1, b"3"), Message(0, 2, b"2"), Message(0, 3, b"1")]
    assert "1 records came out of order: key b'k': b'2' (orders[0] at 2) came after b'3' (orders[0] at 1)." == fails(
        checks.in_order_per_key, inputs, outputs
    )


@given(st.lists(st.tuples(st.integers(0, 1), st.none() | st.integers(0, 3)), max_size=10))
def test_zombies_are_older_than_one_before_them(written: list[tuple[int, int | None]]) -> None:
    records = [Message(partition, n, epoch) for n, (partition, epoch) in enumerate(written)]
    by_partition = [
        [epoch for partition, epoch in written if partition == which and epoch is not None] for which in (0, 1)
    ]
    is_right = all(epochs == sorted(epochs) for epochs in by_partition)
    assert is_right == (not fails(checks.no_zombie_writes, records, lambda record: record.value()))


def test_zombie_is_named_with_who_fenced_it() -> None:
    records = [Message(0, 5, b"1:a"), Message(0, 6, b"2:b"), Message(0, 7, b"1:c")]
    assert (
        "1 records are of writers that were fenced: b'1:c' (orders[0] at 7) of epoch 1, behind epoch 2 (orders[0] at 6)."
        == fails(checks.no_zombie_writes, records, lambda record: int(record.value()[:1]))
    )


def test_what_was_read_is_still_there(broker: Broker) -> None:
    broker.produce("orders", [("k", "one"), ("k", "two")], partition=0)
    read = [Message(0, 0, b"one", b"k"), Plain("orders", 0, 1, b"k", b"two")]
    checks.still_there(read, broker)
    checks.still_there([], broker)
    assert (
        "1 records that were read are gone: b'three' (orders[0] at 2).\n"
        "1 have another content: b'TWO' (orders[0] at 1), now b'two'."
        == fails(checks.still_there, [Message(0, 2, b"three"), Message(0, 1, b"TWO", b"k")], broker)
    )


# -- a group ----------------------------------------------------------------------------------------------------------


def commit(broker: Broker, offset: int, partition: int = 0) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**broker.client_settings, "group.id": "g", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("orders", partition, offset)], asynchronous=False)
    consumer.close()


def test_progress_in_order_is_right(broker: Broker) -> None:
    broker.produce("orders", ["0", "1", "2"], partition=0)
    progress = Progress(broker, "g")
    progress.processed(Message(0, 0))
    progress.processed(Plain("orders", 0, 1, None, b"1"))
    commit(broker, 2)
    progress.processed(Message(0, 1))  # again
    progress.processed(Message(0, 2))
    commit(broker, 3)
    progress.check()
    report = progress.report()
    assert ({("orders", 0): 0}, {Place("orders", 0, 1): 2}, 3) == (report.lag, report.again, report.processed)
    assert "3 records were processed. No lag. 1 came again: orders[0] at 1: 2 times." == str(report)


def test_commit_ahead_of_the_work_is_found(broker: Broker) -> None:
    broker.produce("orders", ["0", "1", "2"], partition=0)
    progress = Progress(broker, "g")
    progress.processed(Message(0, 0))
    commit(broker, 2)
    sentence = "The group's offsets do not follow its work: orders[0]: 2 was committed before b'1' at 1 was processed."
    assert sentence == fails(progress.processed, Message(0, 1))
    assert sentence == fails(progress.check)  # also if the consumer has swallowed it
    assert "1 records" not in str(progress.report())
    assert "Lag: orders[0]: 1." in str(progress.report())


def test_commit_that_goes_back_is_found(broker: Broker) -> None:
    broker.produce("orders", ["0", "1"], partition=0)
    progress = Progress(broker, "g")
    for offset in (0, 1):
        progress.processed(Message(0, offset))
    commit(broker, 2)
    progress.check()
    commit(broker, 1)
    assert "orders[0]: the committed offset went back from 2 to 1" in fails(progress.check)


def test_what_the_group_had_before_is_not_asked_for(broker: Broker) -> None:
    broker.produce("orders", ["0", "1", "2"], partition=1)
    commit(broker, 2, partition=1)
    progress = Progress(broker, "g")
    progress.check()
    commit(broker, 3, partition=1)
    assert "3 was committed before b'2' at 2" in fails(progress.check)


def test_offsets_without_records_need_no_work(broker: Broker) -> None:
    from confluent_kafka import Producer

    producer = Producer({**broker.client_settings, "transactional.id": "t"})
    producer.init_transactions(20)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce("orders", b"v", partition=0)
        producer.flush(20)
        end(20)
    assert [0, 4] == [record.offset for record in broker.records("orders")]
    progress = Progress(broker, "g")
    progress.processed(Message(0, 0))
    commit(broker, 4)
    progress.check()
    progress.processed(Message(0, 4))
    commit(broker, 6)
    progress.check()


def test_stopped_broker_is_not_asked(broker: Broker) -> None:
    progress = Progress(broker, "g")
    broker.stop()
    progress.processed(Message(0, 0))
    broker.start()
    assert 1 == progress.report().processed


steps = st.lists(st.tuples(st.sampled_from(["assigned", "revoked", "lost"]), st.sampled_from("ab"), st.integers(0, 1)))


@given(steps)
@example([("assigned", "a", 0), ("assigned", "b", 0), ("revoked", "a", 0)])
@example([("assigned", "a", 0), ("assigned", "b", 0), ("lost", "a", 0), ("assigned", "a", 0), ("lost", "b", 0)])
@example([("assigned", "a", 0), ("revoked", "a", 0), ("assigned", "b", 0), ("revoked", "b", 0)])
def test_rebalances_are_right_if_a_partition_passes_from_hand_to_hand(taken: list[tuple[str, str, int]]) -> None:
    """The model: what happened to a partition, written down as text, is a pattern. ``A`` is assigned to a, ``R`` revoked,
    ``L`` lost; in small letters for b."""
    rebalances = Rebalances()
    members = {name: rebalances.member(name) for name in "ab"}
    stories = ["", ""]
    for what, name, partition in taken:
        getattr(members[name], what)([("orders", partition)])
        letter = what[0].upper()
        stories[partition] += letter if name == "a" else letter.lower()
    is_right = all(stands(story) for story in stories)
    assert is_right == (not fails(rebalances.check)), stories


def stands(story: str) -> bool:
    """Each member's own events alternate; and when a member is assigned what the other holds, the other's next event is that it
    lost it."""
    mine = ["".join(each.upper() for each in story if each.isupper() == upper) for upper in (True, False)]
    if not all(re.fullmatch("(A[RL])*A?", each) for each in mine):
        return False
    for position, letter in enumerate(story):
        if letter.upper() != "A":
            continue
        others = [each.upper() for each in story[:position] if each.isupper() != letter.isupper()]
        later = [each.upper() for each in story[position:] if each.isupper() != letter.isupper()]
        if others and others[-1] == "A" and later[:1] != ["L"]:
            return False
    return True


def test_messages_of_rebalances_name_member_and_partition() -> None:
    rebalances = Rebalances()
    a, b = rebalances.member("a"), rebalances.member("b")
    a.assigned([("orders", 0)])
    a.assigned([("orders", 0)])
    b.revoked([("orders", 1)])
    b.lost([("orders", 2)])
    b.processed(Message(3, 7))
    b.assigned([("orders", 0)])
    said = fails(rebalances.check)
    assert (
        "Rebalances were not in order: a: orders[0] was assigned a second time, b: orders[1] was revoked, but not assigned, "
        "b: orders[2] was lost, but not assigned, b: processed orders[3] at 7, a partition that it did not have, "
        "a: was not told that it lost orders[0], which b has." == said
    )


def test_dead_member_need_not_be_told() -> None:
    rebalances = Rebalances()
    a, b = rebalances.member("a"), rebalances.member("b")
    a.assigned([("orders", 0)])
    a.processed(Message(0, 7))
    b.assigned([("orders", 0)])
    a.died()
    rebalances.check()


def test_members_of_a_real_group(broker: Broker) -> None:
    """Two consumers of confluent-kafka, whose own callbacks are called, too."""
    from confluent_kafka import Consumer

    rebalances = Rebalances()
    seen: list[str] = []
    consumers = []
    for name in "ab":
        member = rebalances.member(
            name, on_assign=lambda _consumer, got: seen.extend(str(each.partition) for each in got)
        )
        consumer = Consumer({**broker.client_settings, "group.id": "g", "heartbeat.interval.ms": 50, "log_level": 0})
        consumer.subscribe(["orders"], member.on_assign, member.on_revoke, member.on_lost)
        consumers.append((member, consumer))
        have = sum(len(consumer.assignment()) for _, consumer in consumers)
        while not all(consumer.assignment() for _, consumer in consumers) or have != 2:
            for _, consumer in consumers:
                consumer.poll(0.02)
            have = sum(len(consumer.assignment()) for _, consumer in consumers)
    for _, consumer in consumers:
        consumer.close()
    rebalances.check()
    assert {"0", "1"} == set(seen)


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="no record with a topic"):
        checks.place_of(b"value")
    with pytest.raises(TypeError, match="no record with a topic"):
        checks.place_of(Plain("orders", 0, None, None, b"v"))  # type: ignore[arg-type]
