"""Pulsar clients that ask for too much, never acknowledge or do not read: each meets a bound, and the others hardly notice."""

import time
from typing import Any

import pytest

from tests.faults.pulsar_faults import PulsarFaults
from tests.faults.raw import with_settings
from tests.pulsar_frames import command, send, send_batch
from tests.raw_pulsar import EARLIEST, EXCLUSIVE, KEY_SHARED, SHARED, RawPulsar, ids_of, topic
from tests.waiting import wait_for

MIB = 1 << 20
MAX = 2**32 - 1


def outgoing(pulsar: PulsarFaults) -> int:
    """Bytes waiting for clients that do not read."""
    processors = pulsar.faults.broker.server.sockets.processors
    return sum(connection.outgoing_bytes for processor in processors for connection in list(processor.connections))


def fill(pulsar: PulsarFaults, name: str, count: int, size: int = 100, **fields: Any) -> None:
    with pulsar.connect_pulsar() as client:
        client.produce_to(name)
        for start in range(0, count, 500):
            values = [b"%d " % number + bytes(size) for number in range(start, min(start + 500, count))]
            client.publish(*values, first=start, **fields)


# -- permits ------------------------------------------------------------------------------------------------------------------


def test_consumer_beside_a_stalled_consumer_gets_the_rest(pulsar: PulsarFaults) -> None:
    name = topic()
    pulsar.connect_pulsar(receive_buffer=4096).subscribe_to(name, kind=SHARED).flow(1_000_000)
    fill(pulsar, name, 600, 10_000)
    worker = pulsar.connect_pulsar().subscribe_to(name, kind=SHARED)
    worker.flow(1000)
    assert worker.messages(100)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_permits_without_end_are_no_permits_too_many(pulsar: PulsarFaults, kind: int) -> None:
    name = topic()
    client = pulsar.connect_pulsar().subscribe_to(name, kind=kind)
    for _ in range(100):
        client.flow(2**31 - 1)
    fill(pulsar, name, 1000)
    messages = client.messages(1000)
    assert list(range(1000)) == [frame.body.message_id.entryId for frame in messages]
    assert client.acknowledge(ids_of(messages)) == ""
    assert client.is_silent()
    assert pulsar.serves_pulsar()


def test_consumer_that_reads_nothing_costs_bounded_memory(pulsar: PulsarFaults) -> None:
    name = topic()
    silent = pulsar.connect_pulsar(receive_buffer=4096).subscribe_to(name, "silent", SHARED)
    silent.flow(MAX)
    greedy = [pulsar.connect_pulsar(receive_buffer=4096).subscribe_to(name, f"greedy {n}") for n in range(10)]
    for consumer in greedy:
        consumer.flow(MAX)
    fill(pulsar, name, 3000, 10_000)
    high = pulsar.faults.broker.server.sockets.settings.high_water_bytes
    # Above the mark no read begins, but a read of up to 5 MiB may have begun just before.
    assert outgoing(pulsar) <= 11 * (high + 6 * MIB)
    assert pulsar.serves_pulsar()
    # Another consumer of the subscription gets the messages that the silent consumer has no room for.
    worker = pulsar.connect_pulsar().subscribe_to(name, "silent", SHARED)
    worker.flow(3000)
    assert worker.messages(500)
    for consumer in greedy:
        consumer.close()
    silent.close()
    left = worker.messages(2500)
    assert len(left) == 2500
    assert pulsar.serves_pulsar()


def test_producer_that_reads_no_receipts_is_muted(pulsar: PulsarFaults) -> None:
    client = pulsar.connect_pulsar(receive_buffer=4096).produce_to(topic())
    client.socket.setblocking(False)
    frames = b"".join(send(0, number, b"v" * 10) for number in range(1000))
    sent = 0

    def stuck() -> bool:
        nonlocal sent
        before = sent
        for _ in range(20):
            try:
                sent += client.socket.send(frames)
            except BlockingIOError:
                break
        time.sleep(0.05)
        return sent == before or sent > 400 * MIB

    wait_for(stuck)
    high = pulsar.faults.broker.server.sockets.settings.high_water_bytes
    assert outgoing(pulsar) <= high + 6 * MIB
    assert pulsar.serves_pulsar()


def test_consumer_that_never_acknowledges_is_stopped_at_bound(pulsar: PulsarFaults) -> None:
    name = topic()
    greedy = pulsar.connect_pulsar().subscribe_to(name, "greedy", SHARED)
    greedy.flow(MAX)
    with pulsar.connect_pulsar() as client:
        client.produce_to(name)
        values = [b"v"] * 1000
        for start in range(0, 70_000, 1000):  # batches: 50,000 messages may be unacknowledged
            client.send(send_batch(0, start, values))
            client.expect("SEND_RECEIPT")
    got = sum(len(frame.values) for frame in greedy.messages(50))
    assert got == 50_000
    assert greedy.is_silent()
    # Another consumer continues; and so does this consumer after it has acknowledged half of them.
    other = pulsar.connect_pulsar().subscribe_to(name, "greedy", SHARED, consumer_id=1)
    other.flow(10_000, consumer_id=1)
    assert len(other.messages(10)) == 10
    assert pulsar.serves_pulsar()


def test_unacknowledged_key_blocks_no_other_key(pulsar: PulsarFaults) -> None:
    name = topic()
    first = pulsar.connect_pulsar().subscribe_to(name, "sub", KEY_SHARED, consumer_name="first")
    first.flow(1000)
    client = pulsar.connect_pulsar().produce_to(name)
    keys = [f"key {number}" for number in range(50)]
    for number, key in enumerate(keys):
        client.publish(b"held", first=number, partition_key=key)
    held = first.messages(50)
    # A new consumer does not get keys of which the other consumer still has messages.
    second = pulsar.connect_pulsar().subscribe_to(name, "sub", KEY_SHARED, consumer_id=1, consumer_name="second")
    second.flow(100_000, consumer_id=1)
    for number in range(2000):
        client.send(send(0, 100 + number, b"more", partition_key=keys[number % 50]))
    for _ in range(2000):
        client.expect("SEND_RECEIPT")
    assert pulsar.serves_pulsar()
    blocked = [frame for frame in held if frame.metadata.partition_key == keys[0]]
    first.acknowledge(ids_of([frame for frame in held if frame not in blocked]))
    given: dict[str, int] = dict.fromkeys(keys, 0)
    others = [key for key in keys if key != keys[0]]
    first.flow(100_000)
    for consumer in (first, second):
        consumer.socket.settimeout(0.1)

    def come() -> bool:
        for consumer, consumer_id in ((first, 0), (second, 1)):
            try:
                while True:
                    [frame] = consumer.messages(1)
                    given[frame.metadata.partition_key] += 1
                    consumer.tell("ACK", consumer_id=consumer_id, ack_type=0, message_id=[_plain(frame)])
            except TimeoutError:
                pass
        return all(given[key] == 40 for key in others)

    wait_for(come)


def _plain(frame: Any) -> dict[str, int]:
    return {"ledgerId": frame.body.message_id.ledgerId, "entryId": frame.body.message_id.entryId}


# -- acknowledgements ---------------------------------------------------------------------------------------------------------


def test_acknowledgements_with_many_holes_are_bounded_and_kept(pulsar: PulsarFaults) -> None:
    name = topic()
    with pulsar.connect_pulsar() as client:
        client.produce_to(name)
        for start in range(0, 20_000, 1000):
            client.send(b"".join(send(0, start + at, b"") for at in range(1000)))
            for _ in range(1000):
                client.expect("SEND_RECEIPT")
    client = pulsar.connect_pulsar().subscribe_to(name, kind=SHARED)
    client.flow(100_000)
    acknowledged: set[int] = set()
    refused = 0
    for _ in range(19):
        frames = client.messages(1000)
        chosen = frames[::2]
        error = client.acknowledge(ids_of(chosen))
        if error:
            refused += 1
        else:
            acknowledged |= {frame.body.message_id.entryId for frame in chosen}
        if _ % 10 == 0:
            assert pulsar.serves_pulsar()
    client.close()
    again = pulsar.connect_pulsar().subscribe_to(name, kind=SHARED)
    again.flow(100_000)
    redelivered = {frame.body.message_id.entryId for frame in again.messages(20_000 - len(acknowledged))}
    assert not redelivered & acknowledged
    assert again.is_silent()


def test_acknowledgements_of_what_there_is_not(pulsar: PulsarFaults) -> None:
    name = topic()
    client = pulsar.connect_pulsar().produce_to(name).subscribe_to(name, kind=SHARED)
    [receipt] = client.publish(b"value")
    for start in range(1, 1_000_000, 100_000):
        ids = [{"ledgerId": receipt.ledgerId, "entryId": entry_id} for entry_id in range(start, start + 100_000, 2)]
        client.send(command("ACK", consumer_id=0, ack_type=0, message_id=ids))
        assert pulsar.serves_pulsar()
    client.flow(10)
    [message] = client.messages(1)
    assert message.payload == b"value"
    client.publish(b"another", first=1)
    assert [b"another"] == [frame.payload for frame in client.messages(1)]


def test_oversized_batch_set_ends_the_connection(pulsar: PulsarFaults) -> None:
    client = pulsar.connect_pulsar().subscribe_to(topic(), kind=SHARED)
    lie = {"ledgerId": 0, "entryId": 0, "ack_set": [-1] * 100_000, "batch_size": 3}
    client.tell("ACK", consumer_id=0, ack_type=0, message_id=[lie])
    assert client.is_closed()
    assert pulsar.serves_pulsar()


@pytest.mark.parametrize("words", [1, 2, 1000])
@pytest.mark.parametrize("batch_size", [0, 3, 2**31 - 1, -1])
def test_batch_sets_with_false_sizes(pulsar: PulsarFaults, words: int, batch_size: int) -> None:
    name = topic()
    client = pulsar.connect_pulsar().produce_to(name).subscribe_to(name, kind=SHARED)
    client.send(send_batch(0, 0, [b"a", b"b", b"c"]))
    client.expect("SEND_RECEIPT")
    client.flow(10)
    [message] = client.messages(1)
    for word in (0, -1, 2**63 - 1, 5):
        lie = {**_plain(message), "ack_set": [word] * words, "batch_size": batch_size}
        client.request("ACK", consumer_id=0, ack_type=0, message_id=[lie])
        client.request("ACK", consumer_id=0, ack_type=1, message_id=[lie])
    assert pulsar.serves_pulsar()
    client.publish(b"after", first=3)
    assert b"after" in [frame.payload for frame in client.messages(1)]


def test_redeliveries_without_end(pulsar: PulsarFaults) -> None:
    name = topic()
    client = pulsar.connect_pulsar().subscribe_to(name, kind=SHARED)
    fill(pulsar, name, 100)
    client.flow(MAX)
    messages = client.messages(100)
    ids = [_plain(frame) for frame in messages]
    for _ in range(50):
        client.tell("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0, message_ids=ids * 10)
    assert pulsar.serves_pulsar()
    seen = {frame.body.message_id.entryId for frame in client.messages(100)}
    assert seen == set(range(100))


# -- crowds -------------------------------------------------------------------------------------------------------------------


def test_many_producers_and_consumers_on_one_connection(pulsar: PulsarFaults) -> None:
    client = pulsar.connect_pulsar()
    name = topic()
    for number in range(1000):
        client.tell("PRODUCER", topic=name, producer_id=number, request_id=number)
    for number in range(1000):
        client.tell(
            "SUBSCRIBE",
            topic=name,
            subscription=f"sub {number}",
            subType=EXCLUSIVE,
            consumer_id=number,
            request_id=1000 + number,
        )
    kinds = [client.next_frame().kind for _ in range(2000)]
    assert set(kinds) <= {"PRODUCER_SUCCESS", "SUCCESS", "ERROR"}
    assert pulsar.serves_pulsar()
    client.close()
    with pulsar.connect_pulsar() as other:
        other.produce_to(name)
        assert other.publish(b"value")


def test_the_same_id_for_two_things(pulsar: PulsarFaults) -> None:
    client = pulsar.connect_pulsar().produce_to(topic()).subscribe_to(topic())
    client.request("PRODUCER", topic=topic(), producer_id=0)
    client.request("SUBSCRIBE", topic=topic(), subscription="s", subType=0, consumer_id=0)
    assert client.publish(b"value")
    assert pulsar.serves_pulsar()


def test_many_topics_and_patterns_for_them(pulsar: PulsarFaults) -> None:
    client = pulsar.connect_pulsar()
    for number in range(300):
        client.produce_to(topic(f"many-{number}"), producer_id=number)
    for _ in range(50):
        client.tell("GET_TOPICS_OF_NAMESPACE", namespace="public/default", request_id=7)
    assert pulsar.serves_pulsar()
    for _ in range(50):
        assert len(client.expect("GET_TOPICS_OF_NAMESPACE_RESPONSE").topics) >= 300
    pattern = "(a+)+" * 20 + "$"
    client.request("GET_TOPICS_OF_NAMESPACE", namespace="public/default", topics_pattern=pattern)
    assert pulsar.serves_pulsar()


def test_clients_that_connect_and_leave_at_any_point(pulsar: PulsarFaults) -> None:
    name = topic()
    fill(pulsar, name, 200)
    for number in range(100):
        client = RawPulsar(pulsar.faults.broker.address("pulsar"))
        client.tell("PRODUCER", topic=name, producer_id=0, request_id=1)
        asked = {"topic": name, "subscription": "sub", "subType": SHARED, "initialPosition": EARLIEST}
        client.tell("SUBSCRIBE", consumer_id=0, request_id=2, **asked)
        client.flow(100)
        client.send(send(0, 0, b"value"))
        if number % 3 == 0:
            client.abort()
        elif number % 3 == 1:
            client.tell("CLOSE_CONSUMER", consumer_id=0, request_id=3)
            client.abort()
        else:
            client.close()
    assert pulsar.serves_pulsar()
    last = pulsar.connect_pulsar().subscribe_to(name, "sub", EXCLUSIVE)  # no earlier consumer is left
    last.flow(10)
    assert last.messages(10)


@with_settings(connections_max_idle_ms=1_000)
def test_idle_consumer_that_answers_pings_stays_connected(pulsar: PulsarFaults) -> None:
    name = topic()
    client = pulsar.connect_pulsar().subscribe_to(name)
    client.flow(10)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        client.tell("PING")
        client.expect("PONG")
        time.sleep(0.2)
    fill(pulsar, name, 1)
    assert client.messages(1)


def test_waiting_producers_that_go_away_wait_no_more(pulsar: PulsarFaults) -> None:
    name = topic()
    owner = pulsar.connect_pulsar().produce_to(name, producer_access_mode=1)
    for _ in range(20):
        waiting = pulsar.connect_pulsar()
        waiting.tell("PRODUCER", topic=name, producer_id=0, request_id=1, producer_access_mode=2)
        assert not waiting.expect("PRODUCER_SUCCESS").producer_ready
        waiting.abort()
    patient = pulsar.connect_pulsar()
    patient.tell("PRODUCER", topic=name, producer_id=0, request_id=1, producer_access_mode=2)
    assert not patient.expect("PRODUCER_SUCCESS").producer_ready
    owner.close()
    assert patient.expect("PRODUCER_SUCCESS").producer_ready
    assert patient.publish(b"value")


# -- delays -------------------------------------------------------------------------------------------------------------------


def test_very_many_delayed_messages_hold_up_nobody(pulsar: PulsarFaults) -> None:
    name = topic()
    client = pulsar.connect_pulsar().subscribe_to(name, kind=SHARED)
    client.flow(1000)
    later = int(time.time() * 1000) + 86_400_000
    with pulsar.connect_pulsar() as producer:
        producer.produce_to(name)
        for start in range(0, 30_000, 1000):
            # A message for each coming second.
            frames = [send(0, start + at, b"", deliver_at_time=later + 1000 * (start + at)) for at in range(1000)]
            producer.send(b"".join(frames))
            for _ in range(1000):
                producer.expect("SEND_RECEIPT")
        assert pulsar.serves_pulsar()
        producer.publish(b"now", first=30_000)
    assert [b"now"] == [frame.payload for frame in client.messages(1)]
    for at in (0, -1, 2**63 - 1, -(2**63)):
        with pulsar.connect_pulsar() as producer:
            producer.produce_to(name)
            producer.send(send(0, 0, b"odd", deliver_at_time=at))
            producer.expect("SEND_RECEIPT")
    assert pulsar.serves_pulsar()
