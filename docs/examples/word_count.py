"""Word count with four writers and three readers, over the reference text that comes with Python.

    python docs/examples/word_count.py

Each writer takes a quarter of the text, splits it into words, and chooses the reader of each word by its key group, so that all
occurrences of a word go to the same reader. Each reader counts its words; together the counts of the three readers are the
result. Writers and readers are threads here; they could be processes on other machines.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Sequence
from pydoc_data.topics import topics

from broker.client import Broker, InputGate, ResultPartitionID, ShuffleWriter, hash_by_key

WRITERS, READERS = 4, 3
TEXT = [topic for _, topic in sorted(topics.items())]


def write(address: str, partition: ResultPartitionID, texts: Sequence[str]) -> None:
    selector = hash_by_key(lambda word: word)
    with (
        ShuffleWriter(address, partition, READERS) as writer,
        writer.records(selector, serializer=str.encode) as out,
    ):
        for text in texts:
            out.extend(re.findall(r"\w+", text.lower()))


def read(address: str, partitions: Sequence[ResultPartitionID], number: int, counts: list[Counter[str]]) -> None:
    # One channel for each writer, all over one connection.
    with InputGate([(address, partition, number) for partition in partitions]) as gate:
        counts[number].update(record.decode() for record in gate.records())


def word_count(address: str) -> list[Counter[str]]:
    """What each reader has counted."""
    job = os.urandom(16)
    partitions = [ResultPartitionID.of(job, number, subtask=number) for number in range(WRITERS)]
    counts: list[Counter[str]] = [Counter() for _ in range(READERS)]
    threads = [
        threading.Thread(target=write, args=(address, partition, TEXT[number::WRITERS]))
        for number, partition in enumerate(partitions)
    ] + [threading.Thread(target=read, args=(address, partitions, number, counts)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


if __name__ == "__main__":
    with Broker() as broker:
        total: Counter[str] = Counter()
        for number, counted in enumerate(word_count(broker.shuffle_address)):
            print(f"reader {number}: {counted.total()} words, {len(counted)} different ones")
            total += counted
        print(", ".join(f"{word} {count}" for word, count in total.most_common(10)))
