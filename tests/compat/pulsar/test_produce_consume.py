"""What is sent is what comes: values, keys, properties, batches, compression, chunks, encryption."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar import CompressionType, ConsumerType, InitialPosition

from tests.compat.pulsar.helpers import PATIENCE_MS, acknowledge, is_silent, numbered, receive, send, send_batch, texts
from tests.waiting import wait_for

CODECS = [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZLib, CompressionType.ZSTD, CompressionType.SNAPPY]


def test_message_has_the_id_of_its_receipt(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name)
    consumer = client.subscribe(name, "sub")
    sent = producer.send(b"hello")
    [message] = receive(consumer, 1)
    assert message.data() == b"hello"
    assert message.message_id() == sent
    assert (sent.partition(), sent.batch_index()) == (-1, -1)
    consumer.acknowledge(message)
    assert is_silent(consumer)


def test_entry_ids_of_single_messages_are_consecutive(client: pulsar.Client, name: str) -> None:
    ids = send(client.create_producer(name), 5)
    assert [0, 1, 2, 3, 4] == [message_id.entry_id() for message_id in ids]
    assert 1 == len({message_id.ledger_id() for message_id in ids})


def test_all_message_metadata_is_delivered(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(name, producer_name=f"{name}-producer")
    producer.send(
        b"value",
        properties={"a": "1", "b": "two", "": "no name"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1_600_000_000_123,
    )
    [message] = receive(consumer, 1)
    assert message.properties() == {"a": "1", "b": "two", "": "no name"}
    assert (message.partition_key(), message.ordering_key()) == ("key", "order")
    assert message.event_timestamp() == 1_600_000_000_123
    assert message.topic_name() == f"persistent://public/default/{name}"
    assert message.producer_name() == f"{name}-producer"
    assert message.redelivery_count() == 0


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_compressed_messages_come_as_they_were_sent(
    client: pulsar.Client, name: str, codec: CompressionType, batching: bool
) -> None:
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(
        name, compression_type=codec, batching_enabled=batching, batching_max_publish_delay_ms=10_000
    )
    values = [f"{text} {'x' * 2000}" for text in numbered(20)]
    sent = send_batch(producer, values)
    messages = receive(consumer, 20)
    assert values == texts(messages)
    assert sent == [message.message_id() for message in messages]


def test_a_batch_is_one_entry(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    ids = send_batch(producer, numbered(10))
    assert list(range(10)) == [message_id.batch_index() for message_id in ids]
    assert 1 == len({message_id.entry_id() for message_id in ids})
    more = send_batch(producer, numbered(3))
    assert more[0].entry_id() > ids[0].entry_id()


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_messages_of_all_sizes(client: pulsar.Client, name: str, size: int) -> None:
    consumer = client.subscribe(name, "sub")
    value = os.urandom(size)
    client.create_producer(name).send(value)
    assert value == receive(consumer, 1)[0].data()


def test_too_large_message_is_refused_next_is_not(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(10 << 20))
    assert producer.send(b"small")


def test_a_chunked_message_comes_whole(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(name, chunking_enabled=True)
    large = os.urandom(12 << 20)
    producer.send(b"before")
    producer.send(large)
    producer.send(b"after")
    messages = receive(consumer, 3)
    assert [b"before", large, b"after"] == [message.data() for message in messages]
    acknowledge(consumer, messages)
    consumer.close()
    assert is_silent(client.subscribe(name, "sub"))


def test_chunks_of_two_producers_with_shared_consumers(connect: Callable[..., pulsar.Client], name: str) -> None:
    consumers = [connect().subscribe(name, "sub", ConsumerType.Shared) for _ in range(3)]
    clients = [connect() for _ in range(2)]
    values = [os.urandom(11 << 20) for _ in clients]

    def produce(number: int) -> None:
        clients[number].create_producer(name, chunking_enabled=True).send(values[number])

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    received: list[bytes] = []

    def all_have_come() -> bool:
        for consumer in consumers:
            try:
                received.append(consumer.receive(100).data())
            except pulsar.Timeout:
                pass
        return len(received) == 2

    wait_for(all_have_come)
    for thread in threads:
        thread.join()
    assert sorted(values) == sorted(received)


def test_encrypted_messages_pass_through(client: pulsar.Client, name: str, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe(name, "sub", crypto_key_reader=keys)
    stranger = client.subscribe(name, "stranger", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
    producer = client.create_producer(name, encryption_key="mine", crypto_key_reader=keys)
    producer.send(b"secret")
    assert b"secret" == receive(consumer, 1)[0].data()
    assert b"secret" not in receive(stranger, 1)[0].data()


def test_a_listener_is_called_for_each_message(client: pulsar.Client, name: str) -> None:
    received: list[bytes] = []

    def listener(consumer: Any, message: Any) -> None:
        received.append(message.data())
        consumer.acknowledge(message)

    client.subscribe(name, "sub", message_listener=listener)
    send(client.create_producer(name), 3)
    wait_for(lambda: len(received) == 3)
    assert numbered(3) == [data.decode() for data in received]


def test_subscription_begins_at_end_or_beginning(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name)
    send(producer, 5)
    early = client.subscribe(name, "early", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
    late = client.subscribe(name, "late", ConsumerType.Shared)
    send(producer, 5, start=5)
    assert numbered(10) == texts(receive(early, 10))
    assert numbered(5, 5) == texts(receive(late, 5))
    assert is_silent(early) and is_silent(late)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=str)
def test_consumer_without_queue_gets_single_messages(client: pulsar.Client, name: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(name, "sub", kind, receiver_queue_size=0, initial_position=InitialPosition.Earliest)
    send(client.create_producer(name), 10)
    assert numbered(10) == texts([consumer.receive() for _ in range(10)])


def test_batches_that_do_not_fill_the_queue_evenly(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub", receiver_queue_size=41)
    producer = client.create_producer(name, batching_enabled=True, batching_max_messages=10, max_pending_messages=1001)
    values = numbered(1000)
    send_batch(producer, values)
    for value in values:
        message = consumer.receive(PATIENCE_MS)
        assert value == message.data().decode()
        consumer.acknowledge(message)
    assert is_silent(consumer)


def test_several_messages_are_received_at_once(client: pulsar.Client, name: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, -1)
    consumer = client.subscribe(name, "sub", ConsumerType.Shared, batch_receive_policy=policy)
    send(client.create_producer(name), 20)
    assert numbered(10) == texts(consumer.batch_receive())
    assert numbered(10, 10) == texts(consumer.batch_receive())


def test_cumulative_and_single_acknowledgements_last(client: pulsar.Client, name: str) -> None:
    cumulative, single = client.subscribe(name, "cumulative"), client.subscribe(name, "single", ConsumerType.Shared)
    producer = client.create_producer(name)
    send(producer, 5)
    cumulative.acknowledge_cumulative(receive(cumulative, 4)[-1])
    acknowledge(single, receive(single, 5)[::2])
    cumulative.close()
    single.close()
    assert numbered(1, 4) == texts(receive(client.subscribe(name, "cumulative"), 1))
    again = client.subscribe(name, "single", ConsumerType.Shared)
    assert ["message 1", "message 3"] == texts(receive(again, 2))
    assert is_silent(again)


def test_an_unsubscribed_subscription_is_forgotten(client: pulsar.Client, name: str) -> None:
    producer = client.create_producer(name)
    consumer = client.subscribe(name, "sub")
    send(producer, 3)
    consumer.unsubscribe()
    consumer = client.subscribe(name, "sub")
    assert is_silent(consumer)
    send(producer, 1, start=3)
    assert numbered(1, 3) == texts(receive(consumer, 1))


def test_acknowledged_in_the_middle_of_a_batch(client: pulsar.Client, name: str) -> None:
    def subscribe() -> Any:
        return client.subscribe(name, "sub", batch_index_ack_enabled=True)

    consumer = subscribe()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    send_batch(producer, numbered(5))
    acknowledge(consumer, receive(consumer, 5)[:2])
    consumer.close()
    consumer = subscribe()
    assert numbered(3, 2) == texts(receive(consumer, 3))
    assert is_silent(consumer)


def test_partly_acknowledged_batch_is_redelivered_whole_without_parts(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    send_batch(producer, numbered(5))
    acknowledge(consumer, receive(consumer, 5)[:2])
    consumer.close()
    assert numbered(5) == texts(receive(client.subscribe(name, "sub"), 5))


def test_many_messages_of_several_producers_on_several_connections(
    connect: Callable[..., pulsar.Client], name: str
) -> None:
    consumer = connect().subscribe(name, "sub")
    clients = [connect() for _ in range(4)]

    def produce(number: int) -> None:
        producer = clients[number].create_producer(name, batching_enabled=number % 2 == 0, block_if_queue_full=True)
        for text in numbered(1000):
            producer.send_async(f"{number}: {text}".encode(), lambda *_: None)
        producer.flush()

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    received: dict[str, list[str]] = {}
    for _ in range(4000):
        message = consumer.receive(PATIENCE_MS)
        producer_number, _, text = message.data().decode().partition(": ")
        received.setdefault(producer_number, []).append(text)
        consumer.acknowledge(message)
    for thread in threads:
        thread.join()
    assert received == {str(number): numbered(1000) for number in range(4)}
    assert is_silent(consumer)
