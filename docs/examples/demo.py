"""Runs the whole pipeline and kills it in the middle (``make demo``).

It starts a broker, writes Python's reference text to a topic, and counts its words with ``pipeline.py`` on Spark. When the
first counts appear, it kills Spark with SIGKILL and starts it again with the same checkpoint. In the end every count must be
exact. Then ``exchange_pipeline.py`` runs a shuffle through the broker.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pipeline

from broker.client import Broker

HERE = Path(__file__).parent
# The longest wait (s) for the first counts, and for the end. Starting Spark takes most of the time.
WAIT_S = 240


def start(servers: str, checkpoint: str) -> "subprocess.Popen[bytes]":
    """Start the job in a process group of its own, with Spark's JVM and workers."""
    command = [sys.executable, str(HERE / "pipeline.py"), "--bootstrap-servers", servers, "--checkpoint", checkpoint]
    return subprocess.Popen([*command, "--lines-per-batch", "2000"], stdout=subprocess.DEVNULL, start_new_session=True)


def kill(job: "subprocess.Popen[bytes]") -> None:
    """Send SIGKILL to the whole process group."""
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    job.wait()


def expected() -> Counter[str]:
    return Counter(word for line in pipeline.text() for word in re.split(r"\W+", line.lower(), flags=re.ASCII) if word)


def killed_and_restarted(servers: str, checkpoint: str) -> tuple[Counter[str], Counter[str]]:
    """The counts when the job was killed, and in the end."""
    pipeline.feed(servers)
    job = start(servers, checkpoint)
    try:
        deadline = time.monotonic() + WAIT_S
        while not (partial := pipeline.result(servers)):
            if job.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the pipeline has written no counts")
            time.sleep(0.1)
    finally:
        kill(job)
    job = start(servers, checkpoint)
    try:
        if job.wait(WAIT_S) != 0:
            raise SystemExit("the pipeline has failed")
    finally:
        kill(job)
    return partial, pipeline.result(servers)


def main() -> None:
    with Broker() as broker, tempfile.TemporaryDirectory() as checkpoint:
        print(
            f"The broker is at {broker.bootstrap_servers}. The input is {len(pipeline.text())} lines of Python's reference text."
        )
        partial, counts = killed_and_restarted(broker.bootstrap_servers, checkpoint)
    print(
        f"Killed after {partial.total()} words. After the restart: {counts.total()} words, {len(counts)} of them distinct."
    )
    for word, count in counts.most_common(10):
        print(f"  {word:10} {count}")
    if counts != expected():
        raise SystemExit("the counts are wrong")
    print("Every count is exact.")
    print("Now a shuffle through the broker:", flush=True)
    subprocess.run([sys.executable, str(HERE / "exchange_pipeline.py")], check=True)


if __name__ == "__main__":
    main()
