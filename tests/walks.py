"""Which code an operation runs through: ``python -m tests.walks [OPERATION ...] [--list OPERATION]``.

Starts a broker in this process, traces its threads and prints for each operation how many files and functions of ``broker/`` and
``protocol/`` run from the arrival of the request to the end of the work that it causes. ``--list OPERATION`` prints the
functions, in the order of their first calls: a breakpoint in any of them is hit.

What counts:

- Only the broker's threads are traced. The clients that are written in Python run in the main thread, which is not.
- An operation runs ``WARM_UPS`` times first, so that imports and caches do not count. The connections are opened before the part
  that counts, and have sent a request, except in ``login``, ``consumer`` and ``producer``, which begin with the connection.
- A function counts if it is called in each of ``REPEATS`` repetitions, so that work which a clock has started does not count.
  Neither does work that begins after the threads have been quiet for ``QUIET_S``, such as a delayed write.
- ``broker/server/machine.py`` does not count: it gives brokers of tests faults of the machine, and `broker serve` has none.
- Comprehensions and generator expressions belong to the function around them. Code that attrs generates has no file.

``consumer`` and ``producer`` are librdkafka's clients. The order of their requests varies, and ``consumer`` lasts so long that
what the processors do by the clock may count. So their figures may differ by a few from run to run.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any
from uuid import uuid4

import attrs
import confluent_kafka

import broker
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandFlow, CommandSubscribe
from protocol.shuffle.buffer_response import BufferResponse
from tests import certificates
from tests.kafka.handlers import consumer_group_client, group_client, share_client
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.kafka.sasl_client import PASSWORD, USER, Connection
from tests.pulsar.wire import Wire, send_frame
from tests.shuffle.harness import Client as ShuffleClient
from tests.shuffle.harness import new_id

ROOT = os.path.dirname(os.path.dirname(broker.__file__))
REPEATS, WARM_UPS = 16, 3
# Long enough for a thread that another has woken to begin on a busy machine; shorter than the broker's own delays.
QUIET_S = 0.02
# Threads that a clock wakes more often than that never fall quiet.
_QUIET_MAX_S = 1.0

Function = tuple[str, str]  # file, relative to the root, and qualified name


class Tracer:
    """Notes the code that the threads call which are started within ``with tracer``, while ``is_on``."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls = 0
        self.codes: dict[CodeType, None] = {}

    def __enter__(self) -> "Tracer":
        threading.setprofile(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.calls += 1
            if self.is_on:
                self.codes.setdefault(frame.f_code)

    def wait_quiet(self) -> None:
        """Wait until the threads have called nothing for ``QUIET_S``."""
        deadline = time.monotonic() + _QUIET_MAX_S
        before = -1
        while before != self.calls and time.monotonic() < deadline:
            before = self.calls
            time.sleep(QUIET_S)

    @contextmanager
    def walk(self) -> Iterator[None]:
        """What is asked in this block, until all threads wait again."""
        self.wait_quiet()
        self.codes = {}
        self.is_on = True
        try:
            yield
            self.wait_quiet()
        finally:
            self.is_on = False


@attrs.frozen
class World:
    """A running broker with all listeners, and connections to it that tests use."""

    kafka: Kafka
    tracer: Tracer

    def measure(self, name: str) -> list[Function]:
        """What it calls, in the order of the first calls. Raises KeyError for an operation that is not in ``OPERATIONS``."""
        operation = OPERATIONS[name]
        for _ in range(WARM_UPS):
            operation(self)
        walks = []
        for _ in range(REPEATS):
            operation(self)
            walks.append(list(dict.fromkeys(map(_function, self.tracer.codes))))
        first, *others = walks
        return [each for each in first if each is not None and all(each in walk for walk in others)]


def files(functions: Iterable[Function]) -> list[str]:
    """Each once, in the same order."""
    return list(dict.fromkeys(file for file, _ in functions))


def _function(code: CodeType) -> Function | None:
    """None: not the project's, or part of another function (a comprehension has a frame of its own until Python 3.11)."""
    file, name = code.co_filename, code.co_qualname
    is_ours = file.startswith((f"{ROOT}/broker/", f"{ROOT}/protocol/"))
    if not is_ours or name.endswith(("comp>", "genexpr>", "<module>")) or file.endswith("/broker/server/machine.py"):
        return None
    return file.removeprefix(f"{ROOT}/"), name


@contextmanager
def world() -> Iterator[World]:
    with TemporaryDirectory() as directory, ExitStack() as stack:
        files = certificates.server().write(Path(directory))
        tracer = stack.enter_context(Tracer())
        kafka = Kafka(
            listeners=[f"{scheme}://127.0.0.1:0" for scheme in ("kafka", "kafka+sasl+ssl", "pulsar", "shuffle")],
            ssl_keystore_location=str(files.both),
            sasl_enabled_mechanisms=["SCRAM-SHA-256"],
        )
        stack.enter_context(kafka)
        kafka.broker.add_user(USER, PASSWORD)
        yield World(kafka, tracer)


# -- the operations: each runs once, and asks within ``world.tracer.walk()`` what counts --------------------------------------


def _produce_fields(topic: str, acks: int) -> dict[str, Any]:
    records = bytes(build_batch([(None, b"value", [], time.time_ns() // 1_000_000)]))
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": data}


def _produce(world: World, acks: int) -> None:
    fields = _produce_fields(world.kafka.topic(), acks)
    with Beside(world.kafka) as kafka:
        kafka.ask(ApiKey.PRODUCE, 10, **fields)
        with world.tracer.walk():
            kafka.ask(ApiKey.PRODUCE, 10, **fields)


def produce(world: World) -> None:
    """One batch of one record for one partition, acks=1."""
    _produce(world, 1)


def produce_all(world: World) -> None:
    """The same with acks=all, which waits for the flusher."""
    _produce(world, -1)


def fetch(world: World) -> None:
    """A batch that is there, of one partition, without a fetch session."""
    topic = world.kafka.topic()
    world.kafka.fill(topic, 1_000_000)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "log_start_offset": -1}
    limits = {"max_wait": 500, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 1, "rack_id": ""}
    session = {"replica_id": -1, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
    fields = limits | session | {"topics": [{"topic": topic, "partitions": [partition]}]}
    with Beside(world.kafka) as kafka:
        kafka.ask(ApiKey.FETCH, 11, **fields)
        with world.tracer.walk():
            assert kafka.ask(ApiKey.FETCH, 11, **fields).responses[0].partitions[0].records


def send(world: World) -> None:
    """Pulsar: a SEND, its receipt and the MESSAGE for an exclusive consumer that has permits. It is not acknowledged."""
    topic = f"persistent://public/default/topic-{uuid4()}"
    address = world.kafka.broker.address("pulsar")
    with closing(Wire(address)) as producer, closing(Wire(address)) as consumer:
        kinds = BaseCommand.Type
        subscribe = CommandSubscribe(topic=topic, subscription="subscription", subType=0, consumer_id=0, request_id=0)
        assert consumer.ask(kinds.SUBSCRIBE, subscribe)[0] == kinds.SUCCESS
        consumer.say(kinds.FLOW, CommandFlow(consumer_id=0, messagePermits=1000))
        producer.produce(topic)

        def once(number: int) -> None:
            producer.raw(send_frame(number))
            assert producer.hear()[0] == kinds.SEND_RECEIPT
            assert consumer.frame() is not None

        once(0)
        with world.tracer.walk():
            once(1)


def join(world: World) -> None:
    """The only member of a new classic group: JoinGroup (twice, as KIP-394 wants it), SyncGroup."""
    group = group_client.new_group()
    with Beside(world.kafka) as kafka:
        group_client.heartbeat(kafka, group, "nobody", 1)
        with world.tracer.walk():
            member_id = group_client.stable(kafka, group)
        group_client.leave(kafka, group, member_id)


def consumer_join(world: World) -> None:
    """The only member of a new group of KIP-848: the heartbeat that joins, which gets its partition."""
    group, topic = group_client.new_group(), world.kafka.topic()
    with Beside(world.kafka) as kafka:
        consumer_group_client.heartbeat(kafka, group, str(uuid4()), 1)
        with world.tracer.walk():
            member = consumer_group_client.join(kafka, group, str(uuid4()), [topic])
        member.leave()


def login(world: World) -> None:
    """A new connection: TLS, ApiVersions, SCRAM-SHA-256 and a Produce with acks=1."""
    fields = _produce_fields(world.kafka.topic(), 1)
    tls = certificates.client_context(directory=Path())
    with world.tracer.walk():
        connection = Connection(world.kafka.broker.address("kafka+sasl+ssl"))
        connection.socket = tls.wrap_socket(connection.socket, server_hostname="localhost")
        connection.ask(ApiKey.API_VERSIONS, 3, client_software_name="test", client_software_version="1")
        assert not connection.log_in().error_code
        connection.ask(ApiKey.PRODUCE, 10, **fields)
    connection.socket.close()


def consumer(world: World) -> None:
    """librdkafka's consumer, from its first connection to its first record: all that a group's only member asks for."""
    topic = world.kafka.topic()
    world.kafka.fill(topic, 1_000_000)
    settings = {"group.id": group_client.new_group(), "auto.offset.reset": "earliest"}
    with world.tracer.walk():
        client = confluent_kafka.Consumer(settings | {"bootstrap.servers": world.kafka.broker.bootstrap_servers})
        client.subscribe([topic])
        message = client.poll(30)
    assert message is not None and message.error() is None, message
    client.close()


def producer(world: World) -> None:
    """librdkafka's producer with TLS and SCRAM, from its first connection to a durable record (acks=all is its default)."""
    settings = {
        "bootstrap.servers": world.kafka.broker.address("kafka+sasl+ssl"),
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.pem": certificates.authority().pem,
    }
    topic = world.kafka.topic()
    with world.tracer.walk():
        client = confluent_kafka.Producer(settings)
        client.produce(topic, b"value")
        left = client.flush(30)
    assert left == 0


def share(world: World) -> None:
    """A share group's member acquires a record with ShareFetch and accepts it with ShareAcknowledge."""
    kafka, topic = world.kafka, world.kafka.topic()
    group = group_client.new_group()
    with share_client.Member(kafka, topic, group=group, member_id=str(uuid4())) as member:
        kafka.inside.groups.share.begin_alter(group)
        member.fetch()
        share_client.write(kafka, topic, 2)
        with world.tracer.walk():
            ((first, last, _),) = member.fetch().ranges()
            assert {0: 0} == member.acknowledged({0: [(first, last, [share_client.ACCEPT])]})
        member.close()


def shuffle(world: World) -> None:
    """A buffer is pushed to a pipelined partition and goes to the reader that has credit for it."""
    host, _, port = world.kafka.broker.shuffle_address.rpartition(":")
    address = host, int(port)
    partition = new_id()
    with ShuffleClient(address) as writing, ShuffleClient(address) as reading:
        writer = writing.open(partition)
        reading.request(partition, credit=10)
        writer.push(b"value")
        reading.next(BufferResponse)
        with world.tracer.walk():
            writer.push(b"value")
            reading.next(BufferResponse)
        writing.release(partition)


OPERATIONS: dict[str, Callable[[World], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (produce, produce_all, fetch, send, join, consumer_join, consumer, login, producer, share, shuffle)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.walks", description="Files and functions on an operation's way."
    )
    # argparse checks the empty list, too.
    parser.add_argument(
        "operations", nargs="*", choices=[[], *OPERATIONS], metavar="OPERATION", help=", ".join(OPERATIONS)
    )
    parser.add_argument("--list", choices=OPERATIONS, metavar="OPERATION", help="print its functions in order")
    given = parser.parse_args()
    with world() as running:
        if given.list:
            for file, name in running.measure(given.list):
                print(f"{file}: {name}")
            return
        print(f"{'operation':15}{'files':>7}{'functions':>11}")
        for name in given.operations or OPERATIONS:
            functions = running.measure(name)
            print(f"{name:15}{len(files(functions)):7}{len(functions):11}   {OPERATIONS[name].__doc__}")


if __name__ == "__main__":
    main()
