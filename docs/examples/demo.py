"""Runs the whole pipeline and kills it in the middle (``make demo``).

It starts a broker, writes Python's reference text to a topic, and counts its words with ``pipeline.py`` on Spark. When the
first counts appear, it kills Spark with SIGKILL and starts it again with the same checkpoint. In the end every count must be
exact. Then ``exchange_pipeline.py`` runs a shuffle through the broker.

Each step is told when it happens. What Spark logs goes to a file, whose end is shown if something fails.
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
from broker.errors import ConfigError
from broker.spark import java

HERE = Path(__file__).parent
# Spark has stopped if nothing is to be seen of it for so long (s): no new count, and nothing new in its log.
STALLED_S = 240.0
_TELL_EVERY_S = 15.0
_LOG_LINES = 15

_began = time.monotonic()


class Failed(Exception):
    """Says in one sentence what has failed."""


def say(text: str) -> None:
    print(f"{time.monotonic() - _began:5.1f} s  {text}", flush=True)


class Job:
    """The pipeline in a process group of its own, with Spark's JVM and workers. ``log``: the file for what Spark prints."""

    def __init__(self, servers: str, checkpoint: str, log: Path) -> None:
        command = [sys.executable, str(HERE / "pipeline.py"), "--bootstrap-servers", servers]
        command += ["--checkpoint", checkpoint, "--lines-per-batch", "2000"]
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        self.pid = self._process.pid
        self._servers = servers
        self._seen: tuple[int, int] = (0, 0)
        self._seen_at = self._told_at = time.monotonic()

    def ended(self) -> bool:
        """Raises Failed for an end with an error."""
        status = self._process.poll()
        if status:
            raise Failed(f"Spark ended with status {status}.")
        return status == 0

    def counted(self) -> Counter[str]:
        """The counts so far. Raises Failed when there has been no progress for a long time."""
        counts = pipeline.result(self._servers)
        seen = counts.total(), self.log.stat().st_size
        if seen != self._seen:
            self._seen, self._seen_at = seen, time.monotonic()
        if time.monotonic() - self._told_at > _TELL_EVERY_S:
            self._told_at = time.monotonic()
            say(f"  Spark is at work; {counts.total():,} words are counted.")
        if time.monotonic() - self._seen_at > STALLED_S:
            raise Failed(f"Spark has made no progress for {STALLED_S:.0f} s, after {counts.total()} words.")
        return counts

    def kill(self) -> None:
        """Send SIGKILL to the whole process group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


def expected() -> Counter[str]:
    return Counter(word for line in pipeline.text() for word in re.split(r"\W+", line.lower(), flags=re.ASCII) if word)


def killed_and_restarted(servers: str, checkpoint: str, log: Path) -> tuple[Counter[str], Counter[str]]:
    """The counts when the job was killed, and in the end. Raises Failed."""
    say(f"Writing {len(pipeline.text()):,} lines of Python's reference text to the topic 'lines'.")
    pipeline.feed(servers)
    job = Job(servers, checkpoint, log)
    say(f"Spark starts (process {job.pid}) and will count the words into the topic 'counts'. This takes a few seconds.")
    try:
        while not (partial := job.counted()):
            if job.ended():
                raise Failed("Spark ended without having written any counts.")
            time.sleep(0.1)
        say(f"The first counts are there: {partial.total():,} words. Now kill -9 of Spark, its JVM and its workers.")
    finally:
        job.kill()
    say("Killed. Nothing was closed, flushed or committed.")
    job = Job(servers, checkpoint, log)
    say(f"Spark starts again (process {job.pid}) with the same checkpoint.")
    try:
        told = partial.total()
        while not job.ended():
            counted = job.counted().total()
            if counted != told:
                say(f"  {counted:,} words are counted.")
                told = counted
            time.sleep(0.2)
    finally:
        job.kill()
    return partial, pipeline.result(servers)


def shuffle(log: Path) -> None:
    say("Now a shuffle through a broker: which names does Python's standard library use most, and in how many modules?")
    with log.open("ab") as output:
        result = subprocess.run([sys.executable, str(HERE / "exchange_pipeline.py")], stderr=output, check=False)
    if result.returncode:
        raise Failed(f"The shuffle's program ended with status {result.returncode}.")


def show(log: Path) -> None:
    """The end of Spark's log, and where the rest is."""
    lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
    if lines:
        print(f"The last lines of Spark's log, {log}:")
        print("\n".join(f"  {line[:200]}" for line in lines[-_LOG_LINES:]))


def main() -> None:
    log = Path(tempfile.mkdtemp(prefix="reactor-broker-demo-")) / "spark.log"
    try:
        java.provide()
        with Broker() as broker, tempfile.TemporaryDirectory() as checkpoint:
            say(f"A broker is running at {broker.bootstrap_servers}. What Spark logs is in {log}.")
            _, counts = killed_and_restarted(broker.bootstrap_servers, checkpoint, log)
        if counts != expected():
            raise Failed(f"The counts are wrong: {counts.total()} words instead of {expected().total()}.")
        say(
            f"Every count is exact: {counts.total():,} words, {len(counts):,} of them distinct. The most frequent ones:"
        )
        print("\n".join(f"         {word:10} {count}" for word, count in counts.most_common(5)))
        shuffle(log)
        say("Done.")
    except (Failed, ConfigError) as error:
        show(log)
        raise SystemExit(f"The demo has failed: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
