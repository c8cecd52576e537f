"""The three steps of docs/SECURITY.md, as somebody would type them, in an empty directory."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config import load
from broker.runtime.net import SystemNetwork

GUIDE = Path(__file__).parent.parent / "docs" / "SECURITY.md"
PATIENCE_S = 60.0


def blocks() -> list[tuple[str, str]]:
    """Language and text of each block of the three steps."""
    steps = GUIDE.read_text("utf-8").partition("## In three steps")[2].partition("\n## ")[0]
    return re.findall(r"```(\w+)\n(.*?)```", steps, re.DOTALL)


@pytest.fixture
def port() -> int:
    listener = SystemNetwork().listen("127.0.0.1", 0, 1, -1, -1)
    try:
        return int(listener.address[1])
    finally:
        listener.close()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a `broker` on the path that is this one."""
    command = tmp_path / "bin" / "broker"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m broker "$@"\n')
    command.chmod(0o755)
    here = str(Path(__file__).parent.parent)
    return {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": here}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    empty = tmp_path / "empty"
    empty.mkdir()
    return empty


@pytest.fixture
def broker(directory: Path, environment: dict[str, str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_the_three_steps(
    directory: Path, environment: dict[str, str], port: int, broker: list[subprocess.Popen[bytes]]
) -> None:
    for language, text in blocks():
        text = text.replace("9093", str(port))
        if language == "properties":
            (directory / "admin.properties").write_text(text)
            alice = text.replace("=admin", "=alice").replace("a long password", "another password")
            (directory / "alice.properties").write_text(alice)
        elif language == "toml":
            load(text)
        elif "broker serve" in text:
            ready = directory / "ready.json"
            command = "exec " + text.replace("\\\n", " ").strip() + f" --ready-file {ready}"
            broker.append(subprocess.Popen(["sh", "-c", command], cwd=directory, env=environment))
            deadline = time.monotonic() + PATIENCE_S
            while not ready.exists():
                assert broker[-1].poll() is None, "it has ended"
                assert time.monotonic() < deadline, "it is not ready"
                time.sleep(0.01)
        else:
            result = subprocess.run(
                ["sh", "-e", "-c", text],
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert result.returncode == 0, (text, result.stdout, result.stderr)
            assert "a long password" not in result.stdout + result.stderr
    assert "hello" in result.stdout


def test_every_setting_that_the_page_names_is_there() -> None:
    from broker.config import BrokerConfig, setting_infos

    names = {info.name for info in setting_infos(BrokerConfig)}
    text = GUIDE.read_text("utf-8")
    named = set(re.findall(r"`((?:ssl|sasl|quota|authorizer|super|allow|acls|connections?|max|handshake)_\w+)\b", text))
    assert named
    assert named - names - {"sasl_mechanism"} == set()
