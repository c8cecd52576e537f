"""A broker with something to see on its page (``make demo-page``), until Ctrl-C.

    python docs/examples/demo_page.py [--port 8080] [--without-spark]

There are producers of orders and clicks, a group with a slow member, transactions that stay open for a while, a shuffle with a
slow reader and, where PySpark is installed, a streaming query that counts words. Everything is in this process and its children
and ends with it; the topics are in a temporary directory.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from broker.client import Broker, InputGate, ResultPartitionID, ShuffleWriter

ORDERS, CLICKS, PAYMENTS, LINES = "orders", "clicks", "payments", "lines"
PARTITIONS = 4
CHANNELS = 4
BUFFERS = 6000
BUFFER = b"x" * 32 * 1024
CUSTOMERS = 97


class Demo:
    """Clients of one broker, each on a thread of its own until `stop` is set."""

    def __init__(self, broker: Broker, stop: threading.Event) -> None:
        self._broker = broker
        self._servers = broker.bootstrap_servers
        self._stop = stop
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self._servers)
        admin.create_topics(
            [NewTopic(name, PARTITIONS, 1) for name in (ORDERS, CLICKS, LINES)]
            + [NewTopic(PAYMENTS, 1, 1, topic_configs={"retention.ms": "86400000"})]
        )
        admin.close()
        for body in (self._orders, self._clicks, self._payments, self._shuffles):
            self._run(body)
        self._run(lambda: self._read("billing", ORDERS, pause_s=0.0))
        self._run(lambda: self._read("billing", ORDERS, pause_s=0.2))
        self._run(lambda: self._read("dashboard", CLICKS, pause_s=0.0))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._until_the_end, args=(body,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _until_the_end(self, body: Callable[[], None]) -> None:
        try:
            body()
        except (KafkaError, OSError) as error:
            if not self._stop.is_set():
                print(f"One of the demo's clients has failed: {error}", file=sys.stderr)

    # -- records ------------------------------------------------------------------------------------------------------

    def _producer(self, **settings: object) -> KafkaProducer:
        return KafkaProducer(bootstrap_servers=self._servers, linger_ms=20, **settings)

    def _orders(self) -> None:
        producer, number = self._producer(client_id="shop"), 0
        text = [line for topic in topics.values() for line in topic.splitlines() if line.strip()]
        while not self._stop.wait(0.1):
            for _ in range(10):
                customer = f"c-{number * 31 % CUSTOMERS}"
                order = {
                    "order": number,
                    "customer": customer,
                    "total": number % 50 + 0.99,
                    "items": [{"sku": "tea", "count": 2}],
                }
                producer.send(ORDERS, json.dumps(order).encode(), key=customer.encode())
                producer.send(LINES, text[number % len(text)].encode())
                number += 1
        producer.close(timeout=5)

    def _clicks(self) -> None:
        producer, number = self._producer(client_id="website", compression_type="gzip"), 0
        while not self._stop.wait(0.05):
            number += 1
            # In waves, so that the curves have a shape.
            for click in range(1 + number // 20 % 15):
                producer.send(CLICKS, b'{"page": "/%d", "ms": %d}' % (click, number % 400))
        producer.close(timeout=5)

    def _payments(self) -> None:
        """Transactions that stay open for a while and hold the last stable offset meanwhile."""
        producer = self._producer(client_id="payments", transactional_id="settlement")
        producer.init_transactions()
        number = 0
        while not self._stop.wait(1):
            producer.begin_transaction()
            for _ in range(5):
                number += 1
                producer.send(PAYMENTS, b"%d" % number)
            producer.flush()
            self._stop.wait(20)
            producer.commit_transaction()
        producer.close(timeout=5)

    def _read(self, group: str, topic: str, pause_s: float) -> None:
        """With a pause, one record at a time: this member falls behind."""
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=self._servers,
            group_id=group,
            client_id=f"{group}-slow" if pause_s else group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=1 if pause_s else 500,
        )
        while not self._stop.wait(pause_s):
            if consumer.poll(timeout_ms=200):
                consumer.commit_async()
        consumer.close(autocommit=False)

    # -- a shuffle ----------------------------------------------------------------------------------------------------

    def _shuffles(self) -> None:
        """One result partition after the other. The reader of its first channel is slow, so the writer is blocked at times."""
        while not self._stop.wait(1):
            partition = ResultPartitionID.of(os.urandom(16), 0)
            bodies = [partial(self._receive, partition, channel) for channel in range(CHANNELS)]
            readers = [threading.Thread(target=self._until_the_end, args=(body,), daemon=True) for body in bodies]
            for reader in readers:
                reader.start()
            with ShuffleWriter(self._broker.shuffle_address, partition, CHANNELS) as writer:
                for number in range(BUFFERS):
                    if self._stop.is_set():
                        return
                    writer.push(number % CHANNELS, BUFFER)
            for reader in readers:
                while reader.is_alive() and not self._stop.is_set():
                    reader.join(0.2)

    def _receive(self, partition: ResultPartitionID, channel: int) -> None:
        with InputGate([(self._broker.shuffle_address, partition, channel)]) as gate:
            for _ in gate.buffers():
                if self._stop.wait(0.05 if channel == 0 else 0):
                    return


def start_query(servers: str, checkpoint: str) -> "subprocess.Popen[bytes]":
    """pipeline.py, in a process group of its own with Spark's JVM and workers."""
    job = str(Path(__file__).parent / "pipeline.py")
    command = [sys.executable, job, "--bootstrap-servers", servers, "--checkpoint", checkpoint, "--forever"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def end(job: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080, help="of the page; 0 is any free one (default: 8080)")
    parser.add_argument("--without-spark", action="store_true")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    listeners = ("kafka://127.0.0.1:0", "shuffle://127.0.0.1:0", f"http://127.0.0.1:{options.port}")
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(listeners=listeners))
        demo = Demo(broker, stop)
        stack.callback(demo.join)
        stack.callback(stop.set)
        demo.start()
        has_spark = importlib.util.find_spec("pyspark") is not None and not options.without_spark
        if has_spark:
            checkpoint = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="demo-page-", ignore_cleanup_errors=True)
            )
            stack.callback(end, start_query(broker.bootstrap_servers, checkpoint))
        print(f"The page:  http://{broker.address('http')}/", flush=True)
        print(f"Kafka:     {broker.bootstrap_servers}")
        print(
            "Spark:     "
            + ("counts words, from lines to counts; it takes half a minute to start" if has_spark else "is not used")
        )
        print("Ctrl-C ends all of it.", flush=True)
        stop.wait()
        print("Ending.", flush=True)


if __name__ == "__main__":
    main()
