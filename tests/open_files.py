"""What this process has open, and which clients live in it, so that tests can tell that something was left, and what."""

import gc
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException, Producer

# Generous: only a hang gets there.
DEADLINE_S = 60.0
_left: set[str] = set()
# A broker that the tests of one process share opens and closes these when it likes.
_OF_A_LOG = re.compile(r".*\.(log|index|timeindex|txnindex)(\.deleted)?( \(deleted\))?")


def open_files() -> dict[str, str]:
    """By descriptor, the file, unless it is one of a log, or the kind and the number of the socket."""
    gc.collect()  # a file that a caught error's traceback still names is closed when that goes
    found = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue  # the directory itself
        if not _OF_A_LOG.fullmatch(file):
            found[descriptor] = file
    return found


def wait_for_files(before: dict[str, str]) -> None:
    """Until not more are open than before. The last ones may go a moment after they were told to."""
    deadline = time.monotonic() + DEADLINE_S
    while len(left := open_files()) > len(before):
        assert time.monotonic() < deadline, f"left open: {dict(left.items() - before.items())}"
        time.sleep(0.002)


def wait_for_librdkafka(told: str) -> None:
    """Until none of its clients lives in this process; AssertionError, with ``told``, after a while. One whose broker has gone
    begins with its bootstrap servers anew every second, and closes and opens a pipe each time."""
    deadline = time.monotonic() + DEADLINE_S
    while threads := _librdkafka_threads():
        if time.monotonic() >= deadline:
            _left.update(threads)  # the next file is not to blame for it
            raise AssertionError(f"{told}: {len(threads)} clients of librdkafka")
        gc.collect()  # a client goes with the objects that know it
        _give_records_up()
        time.sleep(0.002)


def _give_records_up() -> None:
    """Records that cannot be delivered any more have callbacks, which often know their producer: so it would stay."""
    for producer in [each for each in gc.get_objects() if issubclass(type(each), Producer)]:
        with suppress(KafkaException):
            producer.purge()
            producer.poll(0)


def _librdkafka_threads() -> set[str]:
    """The first thread of each client, but of those of which somebody was told."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text() == "rdk:main\n":
                found.add(task.name)
        except OSError:
            continue  # it has just ended
    return found - _left
