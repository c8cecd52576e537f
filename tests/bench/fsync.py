"""What an acknowledgement after an fsync costs, beside a loop that does nothing but ``pwrite`` and ``fdatasync``.

One producer, one record of 100 bytes, 200 requests/s, acks=all. Between any two requests the loop writes as many bytes to a
file on the same file system and syncs it, so that both see the same disk. A server that does no more than that for a request is
asked as well, which shows what the way through a socket and another process costs. The rates of many producers with acks=all are
those of the scenario ``connections``.

Other processes share the disk, so only figures of the same run can be compared.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from tests.bench.frame import CPU, Figures, Meter, Options, Row, percentiles, ratios
from tests.bench.process import BrokerProcess, Helper
from tests.bench.wire import Wire, batch, produce, produce_frame

_RATE = 200
_BYTES = 170  # that a record of 100 bytes takes in the log


class BareLoop:
    """Appends to a file and syncs it."""

    def __init__(self, directory: str) -> None:
        self._file = os.open(f"{directory}/bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._data = os.urandom(_BYTES)
        self._end = 0

    def once(self) -> None:
        os.pwrite(self._file, self._data, self._end)
        os.fdatasync(self._file)
        self._end += len(self._data)

    def close(self) -> None:
        os.close(self._file)


def alternate(works: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    """Do each work ``_RATE`` times a second, one after the other; how long each took, in s."""
    took: dict[str, list[float]] = {name: [] for name in works}
    interval = 1 / _RATE / len(works)  # if the disk is too slow for the rate, there are no pauses
    due = now = time.perf_counter()
    end = now + seconds
    while now < end:
        for name, work in works.items():
            due = max(due + interval, now)
            time.sleep(due - now)
            began = time.perf_counter()
            work()
            now = time.perf_counter()
            took[name].append(now - began)
    return took


def _latency(broker: BrokerProcess, directory: str, seconds: float, name: str) -> Iterator[Row]:
    wire, frame = Wire(broker.address), produce_frame("bench", batch(1, 100), -1)
    with closing(BareLoop(directory)) as loop, Helper("bare", "fsync", directory) as server:
        bare = Wire(server.address)

        def through_server() -> None:
            bare.send(frame[-_BYTES:])
            bare.receive()

        def through_broker() -> None:
            produce(wire, frame, "bench", 1, 1)

        works = {"the loop": loop.once, "bare server": through_server, "broker": through_broker}
        alternate(works, min(0.5, seconds))
        with Meter(broker) as meter:
            took = alternate(works, seconds)
        bare.close()
    loop_figures = percentiles("", took["the loop"])
    for who, times in took.items():
        figures: Figures = percentiles("", times)
        beside = ratios([figures], [loop_figures]) if who != "the loop" else {}
        yield Row(f"{name}, {who}", figures | beside)
    yield Row(f"{name}, CPU", {CPU: meter.cpu_s / len(took["broker"]) * 1e6})


def bench_latency(options: Options) -> Iterator[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="broker-bench-", dir=options.directory) as directory,
        BrokerProcess(directory=directory) as broker,
    ):
        Wire(broker.address).create_topic("bench")
        yield from _latency(broker, directory, options.seconds, f"acks=all, {_RATE}/s")


SECTIONS = {"latency": bench_latency}
