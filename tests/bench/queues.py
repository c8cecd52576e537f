"""What share groups do and cost as a client sees them: ``python -m tests.bench.queues [--quick] [SECTION...]``.

The broker runs in a process of its own, the client in this one, so the CPU of each is known: of all threads, as the kernel counts
it. Records have 100 bytes, batches 500 records. Sections:

- consume: a backlog is read to its end, by the share consumers (ours by poll and by loop, confluent-kafka's), and to
  compare by ordinary consumers (our fetcher with a Python object for each record, confluent-kafka's);
- acknowledge: records that were polled before are accepted one by one, and sent with ``commit``: the acknowledgements alone;
- single: one record is polled, accepted and committed at a time;
- latency: from a producer's send to the worker, at 200 records a second.
"""

import argparse
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import ShareConsumer as ConfluentShareConsumer

from broker.client import ShareConsumer
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.admin.configs import GROUP, alter_configs
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import records
from tests.bench.process import BrokerProcess, figure

_VALUE = b"v" * 100
_names = (f"share-{os.getpid()}-{number}" for number in itertools.count())


class Meter:
    """``with Meter(broker) as meter``: then ``meter.line(name, count)``."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def __enter__(self) -> "Meter":
        self._began, self._own, self._others = time.perf_counter(), time.process_time(), self._broker.cpu_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._began
        self.client_s = time.process_time() - self._own
        self.broker_s = self._broker.cpu_s() - self._others

    def show(self, name: str, count: int) -> None:
        per = 1e6 / count
        print(
            f"{name:34} {count / self.wall_s:10,.0f}/s   client {self.client_s * per:7.2f} us"
            f"   broker {self.broker_s * per:7.2f} us"
        )
        figure(f"share {name}", self.broker_s * per)


def prepared(broker: BrokerProcess, count: int) -> str:
    """A topic with so many records, and a group of the same name that begins at the first of them."""
    name = next(_names)
    with Cluster(ClientConfig.from_properties({"bootstrap.servers": broker.address})) as cluster:
        cluster.make_topics([name])
        changes = {"share.auto.offset.reset": "earliest"}
        assert alter_configs(cluster.routing, {(GROUP, name): changes})[GROUP, name].code == 0
    producer = Producer({"bootstrap.servers": broker.address, "batch.num.messages": 500, "linger.ms": 50})
    for _ in range(count):
        while True:
            try:
                producer.produce(name, _VALUE)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return name


# -- sections ---------------------------------------------------------------------------------------------------


def consume(broker: BrokerProcess, count: int) -> None:
    def ours(name: str) -> None:
        with ShareConsumer(broker.address, name, [name]) as jobs:
            got = 0
            while got < count:
                got += len(jobs.poll(5))

    def ours_whole(name: str) -> None:
        with ShareConsumer(broker.address, name, [name], whole_batches=True) as jobs:
            got = 0
            while got < count:
                got += len(jobs.poll(5))

    def loop(name: str) -> None:
        with ShareConsumer(broker.address, name, [name]) as jobs:
            for _ in itertools.islice(jobs, count):
                pass

    def confluent(name: str) -> None:
        with ConfluentShareConsumer({"bootstrap.servers": broker.address, "group.id": name}) as jobs:
            jobs.subscribe([name])
            got = 0
            while got < count:
                got += len([message.value() for message in jobs.poll(5)])

    def fetcher(name: str) -> None:
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": broker.address})) as cluster:
            got = 0
            for fetched in cluster.fetcher(name, 0, 0, count):
                for position, _ in batches(fetched.data):
                    got += len(list(records(fetched.data, position)))
            assert got == count

    def ordinary(name: str) -> None:
        settings = {"bootstrap.servers": broker.address, "group.id": name + "-c", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe([name])
        got = 0
        while got < count:
            got += len([message.value() for message in consumer.consume(500, 5)])
        consumer.close()

    ways: list[tuple[str, Callable[[str], None]]] = [
        ("ours, poll", ours),
        ("ours, poll, whole batches", ours_whole),
        ("ours, loop", loop),
        ("confluent-kafka, share", confluent),
        ("no group: our fetcher", fetcher),
        ("confluent-kafka, ordinary", ordinary),
    ]
    print(f"consume, {count:,} records")
    for label, way in ways:
        name = prepared(broker, count)
        with Meter(broker) as meter:
            way(name)
        meter.show(label, count)


def acknowledge(broker: BrokerProcess, count: int) -> None:
    """Polls of 500, and only what comes after each of them is measured."""
    print(f"acknowledge, {count:,} records, 500 a request")

    def measure(
        label: str, poll: Callable[[], list[Any]], accept: Callable[[Any], None], commit: Callable[[], Any]
    ) -> None:
        wall = client = server = 0.0
        done = 0
        while done < count:
            polled = poll()
            if not polled:
                continue
            with Meter(broker) as meter:
                for record in polled:
                    accept(record)
                commit()
            done += len(polled)
            wall, client, server = wall + meter.wall_s, client + meter.client_s, server + meter.broker_s
        meter.wall_s, meter.client_s, meter.broker_s = wall, client, server
        meter.show(label, done)

    name = prepared(broker, count)
    with ShareConsumer(broker.address, name, [name], acknowledgement="explicit") as jobs:
        measure("ours", lambda: jobs.poll(5), lambda record: record.accept(), jobs.commit)
    name = prepared(broker, count)
    settings = {"bootstrap.servers": broker.address, "group.id": name, "share.acknowledgement.mode": "explicit"}
    with ConfluentShareConsumer(settings) as theirs:
        theirs.subscribe([name])
        measure("confluent-kafka", lambda: list(theirs.poll(5)), theirs.acknowledge, lambda: theirs.commit_sync(30))


def single(broker: BrokerProcess, count: int) -> None:
    count = max(200, count // 50)
    print(f"single, {count:,} records: poll one, commit")
    name = prepared(broker, count)
    with ShareConsumer(broker.address, name, [name]) as jobs:
        first = jobs.poll(30, max_records=1)
        with Meter(broker) as meter:
            got = len(first)
            while got < count:
                jobs.commit()
                got += len(jobs.poll(5, max_records=1))
        meter.show("ours", count)
    name = prepared(broker, count)
    with ShareConsumer(broker.address, name, [name]) as jobs:
        first = jobs.poll(30, max_records=1)
        with Meter(broker) as meter:
            got = len(first)
            while got < count:  # the acknowledgement goes with the next fetch
                got += len(jobs.poll(5, max_records=1))
        meter.show("ours, without commit", count)


def latency(broker: BrokerProcess, count: int) -> None:
    count = max(400, count // 100)
    print(f"latency, {count} records at 200/s, from send to worker")

    def measure(label: str, name: str, receive: Callable[[], list[bytes]]) -> None:
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})

        def produce() -> None:
            began = time.perf_counter()
            for number in range(count):
                time.sleep(max(0.0, began + number / 200 - time.perf_counter()))
                producer.produce(name, str(time.perf_counter()).encode())
                producer.poll(0)
            producer.flush()

        thread = threading.Thread(target=produce)
        taken: list[float] = []
        with Meter(broker) as meter:
            thread.start()
            while len(taken) < count:
                taken += [time.perf_counter() - float(value) for value in receive()]
            thread.join()
        taken.sort()
        print(
            f"{label:34} median {statistics.median(taken) * 1e3:6.2f} ms   99% {taken[int(len(taken) * 0.99)] * 1e3:6.2f} ms"
            f"   client {meter.client_s / count * 1e6:6.0f} us   broker {meter.broker_s / count * 1e6:6.0f} us"
        )

    name = prepared(broker, 0)
    with ShareConsumer(broker.address, name, [name]) as jobs:
        jobs.poll(2)
        measure("ours", name, lambda: [record.value or b"" for record in jobs.poll(5)])
    name = prepared(broker, 0)
    with ConfluentShareConsumer({"bootstrap.servers": broker.address, "group.id": name}) as theirs:
        theirs.subscribe([name])
        theirs.poll(2)
        measure("confluent-kafka", name, lambda: [message.value() for message in theirs.poll(5)])


SECTIONS = {"consume": consume, "acknowledge": acknowledge, "single": single, "latency": latency}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="fewer records")
    arguments = parser.parse_args()
    count = 20_000 if arguments.quick else 100_000
    with BrokerProcess() as broker:
        for section in arguments.sections or SECTIONS:
            SECTIONS[section](broker, count)


if __name__ == "__main__":
    main()
