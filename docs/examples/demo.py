"""The whole pipeline in one go, with an accident in the middle: what ``make demo`` runs.

A broker starts, Python's reference text goes into a topic, and ``pipeline.py`` counts its words with Spark. As soon as the first
counts are there, Spark is killed hard, and then started again with the same checkpoint. In the end every count must be exact.
Then ``exchange_pipeline.py`` shows a shuffle that goes through the broker.
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
# Longer than it takes on any machine: starting Spark twice is most of it.
WAIT_S = 240


def start(servers: str, checkpoint: str) -> "subprocess.Popen[bytes]":
    """The job in a process of its own (and Spark's JVM and workers in its process group)."""
    command = [sys.executable, str(HERE / "pipeline.py"), "--bootstrap-servers", servers, "--checkpoint", checkpoint]
    return subprocess.Popen([*command, "--lines-per-batch", "2000"], stdout=subprocess.DEVNULL, start_new_session=True)


def kill(job: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to all of it."""
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    job.wait()


def expected() -> Counter[str]:
    return Counter(word for line in pipeline.text() for word in re.split(r"\W+", line.lower(), flags=re.ASCII) if word)


def killed_and_restarted(servers: str, checkpoint: str) -> tuple[Counter[str], Counter[str]]:
    """The counts at the time of the accident, and in the end."""
    pipeline.feed(servers)
    job = start(servers, checkpoint)
    try:
        deadline = time.monotonic() + WAIT_S
        while not (partial := pipeline.result(servers)):
            if job.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the pipeline has written nothing")
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
        print(f"A broker on {broker.bootstrap_servers}. Lines of Python's reference text in: {len(pipeline.text())}")
        partial, counts = killed_and_restarted(broker.bootstrap_servers, checkpoint)
    print(
        f"Killed after {partial.total()} words. After the restart: {counts.total()} words, {len(counts)} different ones"
    )
    for word, count in counts.most_common(10):
        print(f"  {word:10} {count}")
    if counts != expected():
        raise SystemExit("the counts are wrong")
    print("Every count is exact.")
    print("And a shuffle through the broker:", flush=True)
    subprocess.run([sys.executable, str(HERE / "exchange_pipeline.py")], check=True)


if __name__ == "__main__":
    main()
