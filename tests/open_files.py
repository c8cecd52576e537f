"""What this process has open, so that a test can tell that something was left open, and what."""

import gc
import os
import re
import time

# Generous: only a hang gets there.
DEADLINE_S = 20.0
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
