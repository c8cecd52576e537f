"""Records the frames of `pulsar-client`: `python -m tests.protocol.pulsar.capture` rewrites golden/pulsar-client.json.

The tests read that file, so they need no client and see the same bytes everywhere.
"""

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pulsar
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from protocol.pulsar.frames import command_type
from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.protocol.pulsar.stub_broker import StubBroker

FILE = Path(__file__).parent / "golden" / "pulsar-client.json"
TOPIC = "persistent://public/default/golden"
CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
Type = BaseCommand.Type


def connected(url: str) -> pulsar.Client:
    return pulsar.Client(
        url, operation_timeout_seconds=10, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    )


def published(send: Any, max_message_size: int = 5 << 20, **settings: Any) -> list[str]:
    """The SEND frames of a producer with these settings that ``send`` has used."""
    with StubBroker(max_message_size=max_message_size) as broker:
        client = connected(broker.url)
        producer = client.create_producer(TOPIC, producer_name="golden", **settings)
        send(producer)
        producer.flush()
        frames = [frame.hex() for frame in broker.of_type(Type.SEND)]
        client.close()
    return frames


def one(producer: pulsar.Producer) -> None:
    producer.send(b"value")


def rich(producer: pulsar.Producer) -> None:
    producer.send(
        "v\u00e4lue".encode() * 20,
        properties={"a": "1", "\u00e9": "\u00fc"},
        partition_key="k\u00e9y",
        ordering_key="order",
        event_timestamp=1_600_000_000_123,
        sequence_id=77,
        deliver_at=1_900_000_000_000,
    )


def ten(producer: pulsar.Producer) -> None:
    for i in range(10):
        producer.send_async(
            b"message-%d" % i * 5,
            lambda *_: None,
            properties={"i": str(i)},
            partition_key=f"k{i}",
            event_timestamp=1000 + i,
        )


def large(producer: pulsar.Producer) -> None:
    producer.send(bytes(range(256)) * 10, partition_key="k")


def keys(folder: Path) -> tuple[str, str]:
    private = rsa.generate_private_key(65537, 2048)
    paths = folder / "public.pem", folder / "private.pem"
    paths[0].write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    paths[1].write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return str(paths[0]), str(paths[1])


def capture() -> dict[str, Any]:
    batches = {"batching_enabled": True, "batching_max_messages": 10, "batching_max_publish_delay_ms": 10_000}
    sends = {"single": published(one), "rich": published(rich)}
    for name, codec in CODECS.items():
        sends[f"batch {name}"] = published(ten, compression_type=codec, **batches)
        sends[f"single {name}"] = published(rich, compression_type=codec)
    with tempfile.TemporaryDirectory() as folder:
        reader = pulsar.CryptoKeyReader(*keys(Path(folder)))
        sends["encrypted"] = published(ten, encryption_key="rsa", crypto_key_reader=reader, **batches)
    sends["key based"] = published(ten, batching_type=pulsar.BatchingType.KeyBased, **batches)
    sends["chunked"] = published(large, 1000, chunking_enabled=True, batching_enabled=False)
    with StubBroker() as broker:
        client = connected(broker.url)
        consumer = client.subscribe(
            TOPIC, "golden", pulsar.ConsumerType.Shared, properties={"a": "b"}, consumer_name="c"
        )
        consumer.seek(1_600_000_000_000)
        client.close()
        others = {Type.Name(command_type(frame)): frame.hex() for frame in broker.frames}
    return {"client": f"pulsar-client {version('pulsar-client')}", "sends": sends, "commands": others}


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(capture(), indent=1) + "\n")
    sys.stdout.write(f"{FILE.stat().st_size} bytes\n")
