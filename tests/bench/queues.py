"""What share groups do and cost as a client sees them: the broker in a process of its own, the client in this one.

Records have 100 bytes, batches 500 records. ``consume``: a backlog is read to its end, by the share consumers (ours by poll and
by loop, confluent-kafka's), and to compare by ordinary consumers (our fetcher with an object for each record, confluent-kafka's).
``acknowledge``: records that were polled before are accepted one by one, and sent with ``commit``: the acknowledgements alone.
``latency``: from a producer's send to the worker, at 200/s, so one record at a time.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import ShareConsumer as ConfluentShareConsumer

from broker.client import ShareConsumer
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.admin.configs import GROUP, alter_configs
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import records
from tests.bench.frame import CPU, Figures, Meter, Options, Row, medians, percentiles
from tests.bench.process import BrokerProcess

_names = (f"share-{number}" for number in itertools.count())


class BothMeter(Meter):
    """Of the broker, and of this process."""

    def __enter__(self) -> "BothMeter":
        self._own = time.process_time()
        return super().__enter__()

    def figures(self, count: float, size: float = 0) -> Figures:
        return super().figures(count, size) | {"client us": self.client_s / count * 1e6}

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.client_s = time.process_time() - self._own


def _cluster(broker: BrokerProcess) -> Cluster:
    return Cluster(ClientConfig.from_properties({"bootstrap.servers": broker.address}))


def _filled(broker: BrokerProcess, count: int) -> str:
    """A topic with so many records, and a group of the same name that begins at the first of them."""
    name = next(_names)
    with _cluster(broker) as cluster:
        cluster.make_topics([name])
        changes = {"share.auto.offset.reset": "earliest"}
        assert alter_configs(cluster.routing, {(GROUP, name): changes})[GROUP, name].code == 0
    producer = Producer({"bootstrap.servers": broker.address, "batch.num.messages": 500, "linger.ms": 50})
    for number in range(count):
        producer.produce(name, b"v" * 100)
        if number % 10_000 == 9_999:
            producer.flush()
    producer.flush()
    return name


def _ours(broker: BrokerProcess, name: str, **settings: Any) -> ShareConsumer:
    return ShareConsumer(broker.address, name, [name], **settings)


def _theirs(broker: BrokerProcess, name: str, **settings: Any) -> ConfluentShareConsumer:
    consumer = ConfluentShareConsumer({"bootstrap.servers": broker.address, "group.id": name, **settings})
    consumer.subscribe([name])
    return consumer


def bench_consume(options: Options) -> Iterator[Row]:
    count = options.count(100_000)

    def polled(poll: Callable[[], int]) -> None:
        got = 0
        while got < count:
            got += poll()

    def ours(name: str, **settings: Any) -> None:
        with _ours(broker, name, **settings) as jobs:
            polled(lambda: len(jobs.poll(5)))

    def loop(name: str) -> None:
        with _ours(broker, name) as jobs:
            for _ in itertools.islice(jobs, count):
                pass

    def confluent(name: str) -> None:
        with _theirs(broker, name) as jobs:
            polled(lambda: len([message.value() for message in jobs.poll(5)]))

    def fetcher(name: str) -> None:
        with _cluster(broker) as cluster:
            for fetched in cluster.fetcher(name, 0, 0, count):
                for position, _ in batches(fetched.data):
                    list(records(fetched.data, position))

    def ordinary(name: str) -> None:
        settings = {"bootstrap.servers": broker.address, "group.id": name + "-c", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe([name])
        polled(lambda: len([message.value() for message in consumer.consume(500, 5)]))
        consumer.close()

    ways: dict[str, Callable[[str], None]] = {
        "ours, poll": ours,
        "ours, poll, whole batches": lambda name: ours(name, whole_batches=True),
        "ours, loop": loop,
        "confluent-kafka, share": confluent,
        "no group: our fetcher": fetcher,
        "confluent-kafka, ordinary": ordinary,
    }
    with BrokerProcess(directory=options.directory) as broker:
        for label, way in ways.items():
            runs = []
            for _ in range(options.rounds):
                name = _filled(broker, count)
                with BothMeter(broker) as meter:
                    way(name)
                runs.append(meter.figures(count))
            yield Row(f"consume, {label}", medians(runs))


def _acknowledged(
    broker: BrokerProcess, count: int, poll: Callable[[], list[Any]], settle: Callable[[list[Any]], None]
) -> Figures:
    """Only the time after each poll is measured."""
    runs, done = [], 0
    while done < count:
        if polled := poll():
            with BothMeter(broker) as meter:
                settle(polled)
            done += len(polled)
            runs.append((meter.took_s, meter.cpu_s, meter.client_s))
    took_s, broker_s, client_s = (sum(column) for column in zip(*runs, strict=True))
    return {CPU: broker_s / done * 1e6, "per s": done / took_s, "client us": client_s / done * 1e6}


def bench_acknowledge(options: Options) -> Iterator[Row]:
    count = options.count(100_000)
    with BrokerProcess(directory=options.directory) as broker:
        name = _filled(broker, count)
        with _ours(broker, name, acknowledgement="explicit") as jobs:

            def settle(polled: list[Any]) -> None:
                for record in polled:
                    record.accept()
                jobs.commit()

            yield Row("acknowledge, ours", _acknowledged(broker, count, lambda: jobs.poll(5), settle))
        name = _filled(broker, count)
        with _theirs(broker, name, **{"share.acknowledgement.mode": "explicit"}) as theirs:

            def settle_theirs(polled: list[Any]) -> None:
                for record in polled:
                    theirs.acknowledge(record)
                theirs.commit_sync(30)

            figures = _acknowledged(broker, count, lambda: list(theirs.poll(5)), settle_theirs)
            yield Row("acknowledge, confluent-kafka", figures)


def bench_latency(options: Options) -> Iterator[Row]:
    count = max(1, int(options.seconds * 200))

    def measured(name: str, receive: Callable[[], list[bytes]]) -> Figures:
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
        with BothMeter(broker) as meter:
            thread.start()
            while len(taken) < count:
                taken += [time.perf_counter() - float(value) for value in receive()]
            thread.join()
        return percentiles("", taken) | meter.figures(count)

    with BrokerProcess(directory=options.directory) as broker:
        name = _filled(broker, 0)
        with _ours(broker, name) as jobs:
            jobs.poll(min(2.0, options.seconds))
            yield Row("200/s, ours", measured(name, lambda: [record.value or b"" for record in jobs.poll(5)]))
        name = _filled(broker, 0)
        with _theirs(broker, name) as theirs:
            theirs.poll(min(2.0, options.seconds))
            figures = measured(name, lambda: [message.value() or b"" for message in theirs.poll(5)])
            yield Row("200/s, confluent-kafka", figures)


SECTIONS = {
    "consume": bench_consume,
    "acknowledge": bench_acknowledge,
    "latency": bench_latency,
}
