"""How fast the log is by itself: CPU and time of ``append`` and ``read``, opening, fsync. ``python -m tests.bench.bench_log``.

CPU is that of this process for one call, without any network or protocol. The disk matters: give a directory with ``--dir``.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable

from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.runtime.entropy import SystemEntropy
from broker.storage.config import StorageConfig
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager
from protocol.kafka.records.records import build_batch

NOW_MS = time.time_ns() // 1_000_000


def batch(size: int, producer_id: int = -1) -> memoryview:
    """One batch of about ``size`` bytes, in records of 100 bytes or one smaller one."""
    value = b"x" * min(100, size)
    records: list[tuple[None, bytes, tuple[()], int]] = [(None, value, (), NOW_MS)] * max(1, size // 107)
    epoch = 0 if producer_id >= 0 else -1
    return memoryview(build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=epoch))


def open_manager(directory: str) -> LogManager:
    manager = LogManager(
        SystemDisk(),
        SystemClock(),
        SystemEntropy(),
        StorageConfig(data_dir=directory),
        SqliteCatalogue(f"{directory}/catalogue.sqlite"),
    )
    manager.open()
    return manager


def measure(name: str, calls: int, run: Callable[[], object]) -> None:
    cpu, start = time.process_time(), time.perf_counter()
    run()
    cpu, took = time.process_time() - cpu, time.perf_counter() - start
    print(f"{name:44} {cpu / calls * 1e6:8.2f} us CPU {took / calls * 1e6:8.2f} us")


def bench_append(log: Log, name: str, view: memoryview, calls: int) -> None:
    def run() -> None:
        append = log.append
        for _ in range(calls):
            append(view, now_ms=NOW_MS)

    measure(f"append {name} ({len(view)} bytes)", calls, run)


def read_all(log: Log, max_bytes: int) -> tuple[int, int]:
    """(reads, bytes)."""
    offset, reads, total = 0, 0, 0
    while offset < log.high_watermark:
        result = log.read(offset, max_bytes)
        reads += 1
        total += result.size
        last = result.regions[-1]
        # A consumer knows the next offset from the batches; here the position cache does.
        offset = next(
            o
            for o, (_, position) in log._reader.read_ends.items()
            if position == last.offset + last.size and o > offset
        )
    return reads, total


def bench_read(log: Log, max_bytes: int) -> None:
    cpu = time.process_time()
    reads, total = read_all(log, max_bytes)
    cpu = time.process_time() - cpu
    print(f"read {max_bytes:8} bytes in turn ({total / 1e6:5.0f} MB)        {cpu / reads * 1e6:8.2f} us CPU")


def bench_read_tail(log: Log, view: memoryview, calls: int) -> None:
    def run() -> None:
        for _ in range(calls):
            offset = log.high_watermark
            log.append(view, now_ms=NOW_MS)
            log.read(offset, 1_000_000)

    measure("append one record, read it at the tail", calls, run)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--dir", help="where to work (a temporary directory)")
    arguments.add_argument("--topics", type=int, default=1000)
    options = arguments.parse_args()
    directory = tempfile.mkdtemp(dir=options.dir)
    try:
        manager = open_manager(directory)
        manager.create_topic("bench", 8)

        def log(number: int) -> Log:
            found = manager.get("bench", number)
            assert found is not None
            return found

        bench_append(log(0), "one record", batch(100), 200_000)
        bench_append(log(1), "16 KB", batch(16 * 1024), 20_000)
        bench_append(log(2), "1 MB", batch(1_000_000), 300)
        producer = batch(100, producer_id=7)
        calls = 50_000

        def idempotent() -> None:
            for sequence in range(calls):
                build = producer  # the same bytes under a new sequence number would need a new checksum: check and record only
                log(3).producers.check(7, 0, sequence, 0)
                log(3).producers.appended(7, 0, sequence, 0, sequence, NOW_MS, NOW_MS)
                del build

        measure("idempotence: check and remember", calls, idempotent)
        bench_read(log(0), 100_000)
        bench_read(log(1), 1_000_000)
        bench_read(log(2), 4_000_000)
        bench_read_tail(log(4), batch(100), 100_000)
        measure(
            "read at the high watermark",
            200_000,
            lambda: [log(4).read(log(4).high_watermark, 1000) for _ in range(200_000)],
        )

        view = batch(100)

        def durable() -> None:
            for _ in range(200):
                log(5).append(view, now_ms=NOW_MS)
                log(5).flush_to(log(5).log_end_offset)

        measure("append one record and fsync it", 200, durable)
        measure("close", 1, manager.close)
        manager.catalogue.close()
        start = time.perf_counter()
        manager = open_manager(directory)
        print(f"open after a clean stop: {(time.perf_counter() - start) * 1e3:.1f} ms")
        start = time.perf_counter()
        for number in range(options.topics):
            manager.create_topic(f"topic-{number}", 1)
        print(f"create {options.topics} topics: {(time.perf_counter() - start) / options.topics * 1e3:.2f} ms each")
        manager.close()
        manager.catalogue.close()
        start = time.perf_counter()
        manager = open_manager(directory)
        print(f"open with {options.topics} more topics: {(time.perf_counter() - start) * 1e3:.1f} ms")
        manager.close()
        manager.catalogue.close()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
