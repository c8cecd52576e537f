"""What the broker costs, without a client library in the way. Prints a table, and one JSON object with --json.

    python -m tests.bench.bench_broker [--tests produce,fetch,pool,idle,memory,start] [--scale 1.0] [--json]

Figures are rates and the broker's CPU per request from one run. Two noisy cores: compare lines of one run, not runs.
"""

import argparse
import json
import os
import socket
import struct
import time
from collections.abc import Callable

from tests.bench.process import BrokerProcess, figure
from tests.bench.wire import Wire, batch, fetch_all, produce, produce_frame

Figures = dict[str, float]
# Large batches go to the page cache: 3 GB per GB of scale would only measure the disk's write-back.
_LOG_BYTES = 1_000_000_000


def bench_produce(scale: float) -> dict[str, Figures]:
    """One connection, five requests in flight: one record of 100 bytes, 16 KB and 1 MB of 1 KB records; acks 1 and all."""
    results = {}
    cases = [
        ("produce 1 x 100 B", 1, 100, 60_000, 1),
        ("produce 16 KB", 16, 1000, 40_000, 1),
        ("produce 1 MB", 1000, 1000, 1_000, 1),
        ("produce 1 x 100 B, acks=all", 1, 100, 5_000, -1),
    ]
    for name, records, size, count, acks in cases:
        count = max(10, int(count * scale))
        with BrokerProcess() as broker:
            wire = Wire(broker.address)
            wire.create_topic("bench")
            frame = produce_frame("bench", batch(records, size), acks)
            produce(wire, frame, "bench", max(5, count // 20), 5)  # warm
            cpu, began = broker.cpu_s(), time.perf_counter()
            offsets = produce(wire, frame, "bench", count, 5)
            took, cpu = time.perf_counter() - began, broker.cpu_s() - cpu
            assert offsets == [offsets[0] + records * n for n in range(count)], "offsets are not dense"
            results[name] = {
                "requests/s": count / took,
                "MB/s": count * records * size / took / 1e6,
                "broker us/request": cpu / count * 1e6,
                "broker us/record": cpu / (count * records) * 1e6,
            }
            figure(name, cpu / count * 1e6)
    return results


def bench_fetch(scale: float) -> dict[str, Figures]:
    """Read back a log of 1 KB records, from the page cache."""
    count = max(50, int(_LOG_BYTES * scale / 1_000_000))
    with BrokerProcess() as broker:
        wire = Wire(broker.address)
        wire.create_topic("bench")
        produce(wire, produce_frame("bench", batch(1000, 1000)), "bench", count, 5)
        results = {}
        for name, max_bytes in (("fetch 16 MB", 16 << 20), ("fetch 1 MB", 1 << 20)):
            cpu, began = broker.cpu_s(), time.perf_counter()
            size, requests = fetch_all(wire, "bench", 0, count * 1000, max_bytes)
            took, cpu = time.perf_counter() - began, broker.cpu_s() - cpu
            results[name] = {
                "requests/s": requests / took,
                "MB/s": size / took / 1e6,
                "broker us/request": cpu / requests * 1e6,
                "broker us/record": cpu / (count * 1000) * 1e6,
            }
            figure(name, cpu / requests * 1e6)
        return results


def _open_idle(broker: BrokerProcess, count: int) -> list[socket.socket]:
    host, port = broker.address.rsplit(":", 1)
    ask = struct.pack(">ihhih", 14, 18, 0, 1, 4) + b"idle"
    idle = []
    for _ in range(count):
        connection = socket.create_connection((host, int(port)), timeout=20)
        connection.sendall(ask)
        assert connection.recv(65536)
        idle.append(connection)
    return idle


def bench_idle(scale: float) -> dict[str, Figures]:
    """The one-record produce with and without 1,000 idle connections, in turn in one broker."""
    count = max(1000, int(30_000 * scale))
    with BrokerProcess() as broker:
        wire = Wire(broker.address)
        wire.create_topic("bench")
        frame = produce_frame("bench", batch(1, 100))
        rates: dict[str, list[Figures]] = {"without": [], "with 1000": []}
        for _ in range(3):
            for name in rates:
                idle = _open_idle(broker, 1000) if name != "without" else []
                cpu, began = broker.cpu_s(), time.perf_counter()
                produce(wire, frame, "bench", count, 5)
                took, cpu = time.perf_counter() - began, broker.cpu_s() - cpu
                rates[name].append({"requests/s": count / took, "broker us/request": cpu / count * 1e6})
                for connection in idle:
                    connection.close()
        return {
            f"produce {name} idle": {key: sorted(run[key] for run in runs)[1] for key in runs[0]}
            for name, runs in rates.items()
        }


def bench_memory(scale: float) -> dict[str, Figures]:
    """Resident memory: at rest, per connection, per topic, per GB of log."""
    with BrokerProcess() as broker:
        figures = {"at rest MB": broker.rss_mb()}
        idle = _open_idle(broker, 1000)
        figures["KB per connection"] = (broker.rss_mb() - figures["at rest MB"]) * 1024 / 1000
        for connection in idle:
            connection.close()
        wire = Wire(broker.address)
        before = broker.rss_mb()
        topics = max(100, int(1000 * scale))
        for number in range(topics):
            wire.create_topic(f"topic-{number}")
        figures["KB per topic"] = (broker.rss_mb() - before) * 1024 / topics
        frame = produce_frame("topic-0", batch(16, 1000))
        produce(wire, frame, "topic-0", 1000, 5)
        before = broker.rss_mb()
        count = int(_LOG_BYTES * scale / 16_000)
        produce(wire, frame, "topic-0", count, 5)
        figures["MB per GB of log"] = (broker.rss_mb() - before) / (count * 16_000 / 1e9)
    return {"memory": figures}


def bench_start(scale: float) -> dict[str, Figures]:
    """From exec to the ready file, and CPU while idle."""
    times = []
    for _ in range(5):
        with BrokerProcess() as broker:
            times.append(broker.ready_s)
    with BrokerProcess() as broker:
        time.sleep(1)
        cpu = broker.cpu_s()
        time.sleep(5)
        idle = (broker.cpu_s() - cpu) / 5
        return {
            "start": {
                "ready s (median)": sorted(times)[2],
                "ready s (best)": min(times),
                "idle CPU %": idle * 100,
                "RSS MB": broker.rss_mb(),
            }
        }


TESTS: dict[str, Callable[[float], dict[str, Figures]]] = {
    "start": bench_start,
    "produce": bench_produce,
    "fetch": bench_fetch,
    "idle": bench_idle,
    "memory": bench_memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", default=",".join(TESTS))
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more requests")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, Figures] = {}
    for name in options.tests.split(","):
        results.update(TESTS[name](options.scale))
        if not options.json:
            for case in list(results)[-10:]:
                if case not in printed:
                    printed.add(case)
                    figures = "  ".join(f"{key} {value:,.4g}" for key, value in results[case].items())
                    print(f"{case:32} {figures}", flush=True)
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "results": results}, indent=1))


printed: set[str] = set()

if __name__ == "__main__":
    main()
