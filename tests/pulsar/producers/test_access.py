"""Producers that want a topic for themselves, over a real socket and with the real client."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar import ProducerAccessMode

from broker.client.embedded import Broker
from protocol.pulsar import pulsar_pb2 as pb
from tests.pulsar.wire import Type, Wire, send_frame

Connect = Callable[..., Wire]
EXCLUSIVE, WAIT, FENCING = 1, 2, 3


def test_the_real_client_is_fenced_and_told_so(broker: Broker) -> None:
    url = f"pulsar://{broker.address('pulsar')}"
    one, other = pulsar.Client(url), pulsar.Client(url)
    first = one.create_producer("t", access_mode=ProducerAccessMode.Exclusive)
    first.send(b"first")
    with pytest.raises(pulsar.ProducerFenced):
        other.create_producer("t", access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        other.create_producer("t")
    second = other.create_producer("t", access_mode=ProducerAccessMode.ExclusiveWithFencing)
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        first.send(b"too late")
    second.send(b"second")
    with suppress(pulsar.AlreadyClosed):  # its producer is closed, or just being so
        one.close()
    other.close()


def test_who_waits_is_told_twice(connect: Connect) -> None:
    first, second = connect(), connect()
    assert 0 == first.produce("t", producer_access_mode=EXCLUSIVE).topic_epoch
    waiting = second.produce("t", producer_name="second", producer_access_mode=WAIT)
    assert (False, "second") == (waiting.producer_ready, waiting.producer_name)
    first.close()
    kind, ready = second.hear()
    assert (Type.PRODUCER_SUCCESS, waiting.request_id, True, 1) == (
        kind,
        ready.request_id,
        ready.producer_ready,
        ready.topic_epoch,
    )
    second.raw(send_frame(0))
    assert Type.SEND_RECEIPT == second.hear()[0]


def test_who_waits_may_give_up(connect: Connect) -> None:
    first, second, third = connect(), connect(), connect()
    first.produce("t")
    assert not second.produce("t", producer_access_mode=WAIT).producer_ready
    assert pb.ServerError.ProducerBusy == third.produce("t").error
    assert Type.SUCCESS == second.ask(Type.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=0, request_id=0))[0]
    assert third.produce("t").producer_ready


def test_who_waits_is_fenced_by_one_who_fences(connect: Connect) -> None:
    first, second, third = connect(), connect(), connect()
    first.produce("t")
    waiting = second.produce("t", producer_access_mode=WAIT)
    assert third.produce("t", producer_access_mode=FENCING).producer_ready
    kind, error = second.hear()
    assert (Type.ERROR, waiting.request_id, pb.ServerError.ProducerFenced) == (kind, error.request_id, error.error)
    assert Type.CLOSE_PRODUCER == first.hear()[0]


def test_topic_epoch_survives_restart(tmp_path: Path) -> None:
    for expected in (0, 1):
        with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
            wire = Wire(broker.address("pulsar"))
            assert expected == wire.produce("t", producer_access_mode=EXCLUSIVE).topic_epoch
            wire.close()
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"]) as broker:
        wire = Wire(broker.address("pulsar"))
        old = wire.produce("t", producer_access_mode=EXCLUSIVE, topic_epoch=0)
        assert pb.ServerError.ProducerFenced == old.error
        wire.close()


def test_producer_name_is_free_once_producer_left(connect: Connect) -> None:
    first, second = connect(), connect()
    first.produce("t", producer_name="name")
    # The broker asks whether the first connection still lives, which answers.
    second.say(Type.PRODUCER, pb.CommandProducer(topic="t", producer_id=0, request_id=1, producer_name="name"))
    assert Type.PING == first.hear()[0]
    first.say(Type.PONG, pb.CommandPong())
    kind, error = second.hear()
    assert (Type.ERROR, pb.ServerError.ProducerBusy) == (kind, error.error)
    # This time it closes without an answer.
    second.say(Type.PRODUCER, pb.CommandProducer(topic="t", producer_id=0, request_id=2, producer_name="name"))
    assert Type.PING == first.hear()[0]
    first.close()
    kind, success = second.hear()
    assert (Type.PRODUCER_SUCCESS, 2, "name") == (kind, success.request_id, success.producer_name)


def test_generated_producer_names_are_unique(connect: Connect) -> None:
    wire = connect()
    names = {wire.produce("t", number).producer_name for number in range(50)}
    assert 50 == len(names)


def test_the_same_producer_may_ask_twice(connect: Connect) -> None:
    wire = connect()
    assert wire.produce("t").producer_name == wire.produce("t").producer_name


def test_producers_are_limited_by_settings(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"], pulsar_max_producers_per_topic=1) as broker:
        wire = Wire(broker.address("pulsar"))
        assert wire.produce("t", 0).producer_ready
        assert pb.ServerError.ProducerBusy == wire.produce("t", 1).error
        assert wire.produce("other", 1).producer_ready
        wire.close()


def test_a_producer_may_make_the_first_subscription(broker: Broker, connect: Connect) -> None:
    wire = connect()
    assert wire.produce("t", initial_subscription_name="first").producer_ready
    (topic,) = broker.server.part("pulsar").context.topics.loaded()  # type: ignore[union-attr]
    assert ["first"] == list(topic.subscriptions)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"producer_name": "n" * 5000}, pb.ServerError.MetadataError),
        ({"initial_subscription_name": "n" * 5000}, pb.ServerError.MetadataError),
        ({"txn_enabled": True}, pb.ServerError.NotAllowedError),
    ],
)
def test_what_a_producer_may_not_ask_for(connect: Connect, fields: dict[str, object], error: int) -> None:
    wire = connect()
    assert error == wire.produce("t", **fields).error
    assert wire.produce("t").producer_ready  # a refused producer leaves nothing behind


def require_encryption(broker: Broker, required: bool) -> None:
    policies = broker.server.part("pulsar").context.policies  # type: ignore[union-attr]
    policies.set_namespace("public/default", encryption_required=required)


def test_required_encryption_must_be_declared_by_producers(broker: Broker, connect: Connect) -> None:
    require_encryption(broker, True)
    wire = connect()
    assert pb.ServerError.MetadataError == wire.produce("t").error
    assert wire.produce("t", encrypted=True).producer_ready
    require_encryption(broker, False)
    assert wire.produce("t", 1).producer_ready


def test_unencrypted_messages_are_refused_where_encryption_required(broker: Broker, connect: Connect) -> None:
    wire = connect()
    wire.produce("t")
    wire.produce("t", 1)
    wire.raw(send_frame(0))
    assert Type.SEND_RECEIPT == wire.hear()[0]
    require_encryption(broker, True)
    wire.raw(send_frame(1))
    kind, error = wire.hear()
    assert (Type.SEND_ERROR, 1, pb.ServerError.MetadataError) == (kind, error.sequence_id, error.error)
    wire.raw(send_frame(0, producer_id=1, encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]))
    kind, receipt = wire.hear()
    assert (Type.SEND_RECEIPT, 1) == (kind, receipt.message_id.entryId)


def test_the_real_client_encrypts_where_it_has_to(broker: Broker, tmp_path: Path) -> None:
    require_encryption(broker, True)
    public, private = _keys(tmp_path)
    client = pulsar.Client(f"pulsar://{broker.address('pulsar')}", operation_timeout_seconds=10)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("t")
    reader: Any = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe("t", "s", crypto_key_reader=reader)
    client.create_producer("t", encryption_key="key", crypto_key_reader=reader).send(b"secret")
    assert b"secret" == consumer.receive(60_000).data()
    client.close()


def _keys(folder: Path) -> tuple[Path, Path]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return public, private
