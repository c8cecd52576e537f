"""One side of ``shuffle``'s section ``clients``, in a process of its own: ``writer`` or ``reader``.

    shuffle_client.py writer|reader ADDRESS PARTITION SIZE COUNT CREDIT LIST

``LIST``: buffers in one call, 1 for single ones. Prints the CPU time and the time that it took (s), without the start of the
process.
"""

import os
import resource
import sys
import time

from broker.client.shuffle.reading.input_gate import InputGate
from broker.client.shuffle.writing.shuffle_writer import ShuffleWriter


def main() -> None:
    role, address, partition, *numbers = sys.argv[1:]
    size, count, credit, together = map(int, numbers)
    work = write if role == "writer" else read
    cpu_s, took_s = work(address, bytes.fromhex(partition), size, count, credit, together)
    print(cpu_s, took_s)


def used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write(address: str, partition: bytes, size: int, count: int, _credit: int, together: int) -> tuple[float, float]:
    payload = os.urandom(size)
    writer = ShuffleWriter(address, partition, 1)
    writer.open()
    used, began = used_s(), time.perf_counter()
    if together > 1:
        payloads = [payload] * together
        for _ in range(count // together):
            writer.push_many(0, payloads)
    else:
        for _ in range(count):
            writer.push(0, payload)
    writer.finish()
    figures = used_s() - used, time.perf_counter() - began
    writer.close()
    return figures


def read(address: str, partition: bytes, _size: int, count: int, credit: int, together: int) -> tuple[float, float]:
    came = 0
    with InputGate([(address, partition, 0)], credit=credit) as gate:
        used, began = used_s(), time.perf_counter()
        if together > 1:
            for _, buffers in gate.buffer_lists():
                came += len(buffers)
        else:
            for _ in gate.buffers():
                came += 1
        figures = used_s() - used, time.perf_counter() - began
    assert came == count, (came, count)
    return figures


if __name__ == "__main__":
    main()
