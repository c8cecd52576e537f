"""`broker top`: the rates between two samples, one sample as lines, and the screen in a pseudo terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from broker.cli.top import Sample, view
from broker.client import Broker
from tests.cli.conftest import Run, command_line
from tests.cli.test_groups import commit, group, read_some
from tests.waiting import wait_for

__all__ = ["group", "read_some"]  # fixtures


def sample(at_s: float, ends: dict[tuple[str, int], int], committed: dict[str, dict[tuple[str, int], int]]) -> Sample:
    return Sample(at_s, ends, frozenset(), dict.fromkeys(committed, "Stable"), committed)


def test_rates_are_those_between_two_samples() -> None:
    before = sample(10.0, {("a", 0): 100, ("a", 1): 0, ("b", 0): 7}, {"g": {("a", 0): 20}})
    now = sample(12.0, {("a", 0): 140, ("a", 1): 20, ("b", 0): 7, ("c", 0): 4}, {"g": {("a", 0): 80}})
    shown = view(before, now)
    assert [("a", 30.0, 160, 60), ("c", 2.0, 4, None), ("b", 0.0, 7, None)] == [
        (line.topic, line.rate, line.records, line.lag) for line in shown.topics
    ]
    (g,) = shown.groups
    # It gains 30 - 20 records/s on the partition that it reads.
    assert ("g", "Stable", 1, 60, 30.0, 6.0) == (g.group, g.state, g.topics, g.lag, g.rate, g.left_s)
    assert 32.0 == shown.rate


def test_the_first_sample_has_lags_and_no_rates() -> None:
    shown = view(None, sample(10.0, {("a", 0): 100}, {"g": {("a", 0): 20}}))
    assert [(None, 80)] == [(line.rate, line.lag) for line in shown.topics]
    assert [(80, None, None)] == [(line.lag, line.rate, line.left_s) for line in shown.groups]
    assert shown.rate is None


def test_rate_is_never_negative() -> None:
    before = sample(0.0, {("a", 0): 100}, {"g": {("a", 0): 90}})
    now = sample(1.0, {("a", 0): 10}, {"g": {("a", 0): 0}})
    shown = view(before, now)
    assert [10.0] == [line.rate for line in shown.topics]  # made again, with ten records
    assert [(10, 0.0, None)] == [(line.lag, line.rate, line.left_s) for line in shown.groups]


def test_offline_partitions_and_hidden_groups_are_counted() -> None:
    now = Sample(0.0, {("a", 0): 1}, frozenset({("a", 1)}), {"g": "Empty", "h": "Empty"}, {"g": {("a", 1): 5}})
    shown = view(None, now)
    assert [(2, 1)] == [(line.partitions, line.offline) for line in shown.topics]
    assert [("g", 0)] == [(line.group, line.lag) for line in shown.groups]
    assert 1 == shown.hidden


@pytest.mark.usefixtures("read_some")
def test_one_sample_is_printed_without_a_terminal(run: Run, topic: str, group: str) -> None:
    lines = run("top", "--interval", "0.2").stdout.decode().splitlines()
    assert f"topic\t{topic}\t2\t0\t0.0\t10\t3" in lines
    assert f"group\t{group}\tEmpty\t1\t3\t0.0\t-" in lines
    printed = [json.loads(line) for line in run("top", "-i", "0.2", "--output", "json").stdout.splitlines()]
    (one,) = [one for one in printed if one.get("group") == group]
    assert (3, 0.0, None) == (one["lag"], one["rate"], one["left_s"])


def test_rates_of_requests_come_from_the_http_listener(run_alone: Run) -> None:
    with Broker(listeners=("kafka://127.0.0.1:0", "http://127.0.0.1:0")) as broker:
        where = ("-b", broker.bootstrap_servers, "-a", f"http://{broker.address('http')}", "-i", "0.2")
        last = json.loads(run_alone("top", *where, "--output", "json").stdout.splitlines()[-1])
        assert "requests" in last["rates"]
        assert 0 < last["free_bytes"]
        wrong = ("-b", broker.bootstrap_servers, "-a", f"http://{broker.bootstrap_servers}", "-i", "0.2")
        assert b"this command needs an http:// one" in run_alone("top", *wrong, fails=1).stderr


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_screen_ends_with_q_or_ctrl_c(run_alone: Run, topic: str, key: bytes) -> None:
    # A broker of its own: with the topics of other tests, this one might not fit on the screen.
    with Broker() as broker:
        run_alone("topics", "create", topic, "-b", broker.bootstrap_servers)
        commit(broker, f"g-{topic}", {(topic, 0): 0})
        arguments = ["top", "-i", "0.2", "-b", broker.bootstrap_servers]
        screen = on_a_terminal(arguments, lambda shown: topic.encode() in shown, key)
    assert b"q: quit" in screen
    assert b"caught up in s" in screen


_PATIENCE_S = 100.0
# Makes it the terminal whose Ctrl-C reaches the process.
_ON_ITS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def on_a_terminal(arguments: list[str], enough: Callable[[bytes], bool], key: bytes) -> bytes:
    """What the command shows until it shows enough; then the key is pressed, and it ends with status 0."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_ITS_TERMINAL, *command_line(*arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    shown, pressed = b"", False
    giving_up = threading.Timer(_PATIENCE_S, process.kill)
    giving_up.start()
    try:
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side has closed the terminal
                break
            if not piece:
                break
            shown += piece
            if not pressed and enough(shown):
                os.write(ours, key)
                pressed = True
    finally:
        giving_up.cancel()
        if not pressed:
            process.kill()
        os.close(ours)
    assert 0 == process.wait(60), shown[-2000:]
    return shown


def test_ctrl_c_without_a_terminal_is_an_interrupt() -> None:
    with Broker() as broker:
        process = subprocess.Popen(
            command_line("top", "-i", "600", "-b", broker.bootstrap_servers),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with process:
            try:
                processors = broker.server.sockets.processors
                wait_for(lambda: any(each.kind for processor in processors for each in processor.connections.copy()))
                process.send_signal(signal.SIGINT)
                _, said = process.communicate(timeout=60)
            finally:
                process.kill()
    # A shell calls both 130. Python ends with the signal itself where that came while it compiled a text, as named tuples do.
    assert process.returncode in (130, -signal.SIGINT), said
    assert b"Traceback" not in said
