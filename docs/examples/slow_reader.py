"""A reader that stops reading delays its own writer, and no other reader or writer.

    python docs/examples/slow_reader.py

There are four writers and four readers; all readers share one connection. Reader 0 takes its first buffer and then waits
until the others have read everything. When its channel has no credit left, the broker sends it nothing more, while the other
channels of the same connection continue. Writer 0 waits, because the broker buffers only a limited part of its partition.
"""

import os
import threading

from broker.client import Broker, InputGate, ResultPartitionID, ShuffleWriter

READERS = 4
BUFFERS = 600
PAYLOAD = b"x" * 32768  # in all 20 MB a writer: more than waits anywhere on the way


def write(address: str, partition: ResultPartitionID, done: threading.Event) -> None:
    with ShuffleWriter(address, partition, 1) as writer:
        for _ in range(BUFFERS):
            writer.push(0, PAYLOAD)
    done.set()


def read(address: str, partition: ResultPartitionID, wait_for: list[threading.Event], done: threading.Event) -> int:
    received = 0
    with InputGate([(address, partition, 0)]) as gate:
        for _, data in gate.buffers():
            received += len(data)
            for event in wait_for:
                event.wait()
    done.set()
    return received


def slow_reader(address: str) -> tuple[bool, list[int]]:
    """Whether writer 0 was held back while the others were read to their ends, and the bytes that each reader got."""
    job = os.urandom(16)
    partitions = [ResultPartitionID.of(job, number) for number in range(READERS)]
    written = [threading.Event() for _ in range(READERS)]
    read_to_the_end = [threading.Event() for _ in range(READERS)]
    received = [0] * READERS
    start_again = threading.Event()

    def reader(number: int) -> None:
        slow = [start_again] if number == 0 else []
        received[number] = read(address, partitions[number], slow, read_to_the_end[number])

    threads = [
        threading.Thread(target=write, args=(address, partitions[number], written[number])) for number in range(READERS)
    ] + [threading.Thread(target=reader, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    for event in read_to_the_end[1:]:
        event.wait()
    held_back = not written[0].is_set()
    start_again.set()
    for thread in threads:
        thread.join()
    return held_back, received


if __name__ == "__main__":
    # 4 MiB a subpartition: what the broker holds for a reader that does not come.
    with Broker(shuffle_pipelined_bytes=4 * 1024 * 1024) as broker:
        held_back, received = slow_reader(broker.shuffle_address)
        print(f"readers 1 to 3 were done while writer 0 {'was held back' if held_back else 'was done, too'}")
        print(f"bytes: {received}")
