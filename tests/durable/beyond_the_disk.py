"""Writes much more than the local disk may hold, and reads it from the beginning.

``python -m tests.durable.beyond_the_disk --gb 50`` says how long it took, and how much disk and memory the broker had at most. It
fails if a record is not as it was written. The objects need as much room as the records, and some more while segments are
uploaded that are in the journal, too.
"""

import argparse
import random
import struct
import tempfile
import threading
import time
from pathlib import Path

import attrs
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.durable.durable_broker import DurableBroker, durable_postgres

SIZE = 100_000
PARTITIONS = 2
# For each partition 400 MB and its open segment of 64 MiB, and 512 MiB of what was read from the store.
SETTINGS = ("log_segment_bytes=67108864", "log_local_retention_bytes=400000000", "remote_cache_bytes=536870912")
_NOISE = random.Random(1).randbytes(32 << 20)


def value(number: int) -> bytes:
    start = number * 7919 % (len(_NOISE) - SIZE)
    return struct.pack(">q", number) + _NOISE[start : start + SIZE - 8]


def size_of(directory: Path) -> int:
    """The disk that its files take, in bytes."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:  # removed meanwhile
            pass
    return total


@attrs.define
class Watch:
    """The most that the broker has had."""

    broker: DurableBroker
    disk_bytes: int = 0
    stopping: threading.Event = attrs.Factory(threading.Event)

    def run(self) -> None:
        assert self.broker.leader is not None
        while not self.stopping.wait(1.0):
            self.disk_bytes = max(self.disk_bytes, size_of(self.broker.leader.data_dir))


def write(servers: str, count: int) -> None:
    def delivered(error: KafkaError | None, _message: Message) -> None:
        assert error is None, error

    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 20, "message.timeout.ms": 600_000})
    for number in range(count):
        while True:
            try:
                producer.produce("big", value(number), partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.5)
        producer.poll(0)
    assert 0 == producer.flush(600)


def read(servers: str, count: int) -> None:
    settings = {"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "queued.max.messages.kbytes": 65_536})
    consumer.subscribe(["big"])
    following = list(range(PARTITIONS))
    for _ in range(count):
        message = consumer.poll(120)
        assert message is not None, following
        assert message.error() is None, message.error()
        number = following[message.partition()]
        assert value(number) == message.value(), f"partition {message.partition()}, offset {message.offset()}"
        following[message.partition()] += PARTITIONS
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=50.0)
    options = parser.parse_args()
    count = int(options.gb * 1e9 / SIZE)
    with (
        tempfile.TemporaryDirectory(prefix="beyond-the-disk-") as directory,
        durable_postgres() as postgres,
        DurableBroker(Path(directory), postgres, *SETTINGS, standbys=0) as broker,
    ):
        admin = AdminClient({"bootstrap.servers": broker.address})
        [made] = admin.create_topics([NewTopic("big", PARTITIONS)]).values()
        made.result(60)
        watch = Watch(broker)
        thread = threading.Thread(target=watch.run)
        thread.start()
        try:
            for what, work in (("written", write), ("read", read)):
                began = time.monotonic()
                work(broker.address, count)
                print(f"{options.gb:g} GB {what} in {time.monotonic() - began:.0f} s", flush=True)
        finally:
            watch.stopping.set()
            thread.join()
        assert broker.leader is not None
        print(f"disk at most {watch.disk_bytes / 1e6:.0f} MB, memory at most {broker.leader.peak_bytes / 1e6:.0f} MB")
        assert [] == broker.errors


if __name__ == "__main__":
    main()
