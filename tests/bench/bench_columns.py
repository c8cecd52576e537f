"""How fast record batches become Arrow columns and the other way round, on one core: ``python -m tests.bench.bench_columns``.

Times are CPU times of the best of ``--repeat`` rounds over ``--mb`` megabytes; MB are of keys and values.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from broker.client.kafka.columns.batch_builder import build, partitions_for
from broker.client.kafka.columns.columns import COLUMNS, Decoder

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FETCH = 1 << 20
NOW_MS = 1_700_000_000_000
Shape = tuple[pa.Array, pa.Array | None, pa.Array]


def shape(size: int, variable: bool, keyed: bool, total: int, text: bool) -> Shape:
    """(values, keys, times) of ``total`` bytes of values; random bytes, or words where they shall compress."""
    count = max(1, total // size)
    chance = np.random.default_rng(5)
    sizes = chance.integers(size // 2, size + size // 2, count) if variable else np.full(count, size)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    if text:
        words = chance.choice(np.array([b"record ", b"batch ", b"offset ", b"high watermark "], object), ends[-1] // 5)
        data = b"".join(words)[: ends[-1]]
    else:
        data = os.urandom(int(ends[-1]))
    values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    keys = pa.array([b"key-%d" % (i % 5000) for i in range(count)], pa.binary()) if keyed else None
    times = pa.array(NOW_MS + np.arange(count) // 20)
    return values, keys, times


def best(repeat: int, run: Callable[[], int]) -> tuple[float, int]:
    took, result = float("inf"), 0
    for _ in range(repeat):
        start = time.process_time()
        result = run()
        took = min(took, time.process_time() - start)
    return took, result


def fetches(batches: list[bytearray]) -> Iterator[bytes]:
    """As a broker sends them: whole batches, about 1 MiB at a time."""
    part = bytearray()
    for batch in batches:
        if part and len(part) + len(batch) > FETCH:
            yield bytes(part)
            part = bytearray()
        part += batch
    yield bytes(part)


def report(name: str, took: float, count: int, size: int) -> None:
    print(f"{name:60} {count / took / 1e6:7.2f} M records/s {size / took / 1e6:8.0f} MB/s {took / count * 1e9:7.0f} ns")


def bench(name: str, given: Shape, batch: int, codec: str, repeat: int, columns: tuple[str, ...] = COLUMNS) -> None:
    values, keys, times = given
    count, size = len(values), values.nbytes + (keys.nbytes if keys else 0)
    built: list[Any] = []

    def encode() -> int:
        nonlocal built
        built = build(values, keys, timestamps_ms=times, now_ms=NOW_MS, compression=codec, max_batch_bytes=batch)
        return len(built)

    took, _ = best(repeat, encode)
    report(f"encode {name}", took, count, size)
    offset = 0
    for one in built:
        one.data[:8] = offset.to_bytes(8, "big")
        offset += one.count
    data = list(fetches([one.data for one in built]))

    def decode() -> int:
        decoder = Decoder("topic", 0, 0, columns=columns)
        return sum(batch.num_rows for part in data for batch in decoder.decode(part, None))

    took, decoded = best(repeat, decode)
    assert count == decoded
    report(f"decode {name}", took, count, size)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--mb", type=int, default=50)
    arguments.add_argument("--repeat", type=int, default=5)
    arguments.add_argument("--codecs", nargs="*", default=list(CODECS))
    options = arguments.parse_args()
    total = options.mb * 1_000_000
    for size in (100, 1000):
        for variable in (False, True):
            for keyed in (False, True):
                given = shape(size, variable, keyed, total, text=False)
                for batch in (16_384, 1_000_000):
                    what = f"{size} B{' variable' if variable else ''}{' keyed' if keyed else ''}, {batch // 1000} kB batches"
                    bench(what, given, batch, "none", options.repeat)
        for codec in options.codecs:
            given = shape(size, True, False, total // 4, text=True)
            bench(f"{size} B variable text, 1 MB batches, {codec}", given, 1_000_000, codec, min(2, options.repeat))
    keys = pa.array([b"key-%d" % i for i in range(1_000_000)])
    took, _ = best(options.repeat, lambda: len(partitions_for(keys, 12)))
    report("murmur2 of 10-byte keys", took, len(keys), keys.nbytes)


if __name__ == "__main__":
    main()
