"""Completion in shells, and `broker help`."""

import os
import subprocess
from pathlib import Path

import pytest

from broker.client import Broker
from tests.cli.conftest import Run, command_line
from tests.cli.test_groups import commit


def completed(line: str, **environment: str) -> list[str]:
    """What a shell is offered at the end of ``line``."""
    words = line.split(" ")
    result = subprocess.run(
        command_line(),
        capture_output=True,
        check=False,
        timeout=60,
        env={
            **os.environ,
            "_BROKER_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            **environment,
        },
    )
    assert b"" == result.stderr
    return [text.split(",", 1)[1] for text in result.stdout.decode().splitlines() if text]


def test_commands_and_options_are_completed() -> None:
    assert ["top", "topics", "transactions"] == sorted(completed("broker t"))
    assert ["describe"] == completed("broker groups desc")
    assert ["--to-earliest"] == completed("broker groups reset-offsets g --to-e")


def test_topic_and_group_names_come_from_broker(session_broker: Broker, run: Run, topic: str) -> None:
    run("topics", "create", topic)
    address = session_broker.bootstrap_servers
    commit(session_broker, f"g-{topic}", {(topic, 0): 0})
    for line in (
        f"broker topics describe {topic[:-1]}",
        f"broker topics describe -b {address} {topic[:-1]}",
        f"broker produce {topic[:-1]}",
        f"broker consume {topic[:-1]}",
        f"broker configs get --topic {topic[:-1]}",
    ):
        assert [topic] == completed(line, BROKER_BOOTSTRAP_SERVERS=address)
    assert [] == completed(f"broker topics delete {topic} {topic[:-1]}", BROKER_BOOTSTRAP_SERVERS=address)
    assert [f"g-{topic}"] == completed(f"broker groups delete g-{topic[:-1]}", BROKER_BOOTSTRAP_SERVERS=address)


def test_nothing_is_suggested_without_broker_or_password(tmp_path: Path) -> None:
    assert [] == completed("broker topics describe -b localhost:1 x")
    assert [] == completed("broker topics describe -b not:a:port x")
    (tmp_path / "client.properties").write_text("security.protocol=SASL_PLAINTEXT\nsasl.username=alice\n")
    assert [] == completed("broker topics describe x", BROKER_CLIENT_CONFIG=str(tmp_path / "client.properties"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(run_alone: Run, shell: str) -> None:
    script = run_alone("completion", shell).stdout.decode()
    assert f"_BROKER_COMPLETE={shell}_complete" in script


def test_bash_takes_the_script(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "script").write_bytes(run_alone("completion", "bash").stdout)
    said = subprocess.run(
        ["bash", "-c", f"source {tmp_path}/script && complete -p broker"], capture_output=True, check=True
    )
    assert b"broker" in said.stdout


def test_help_is_that_of_the_command(run_alone: Run) -> None:
    assert b"Exit status: 0 for success" in run_alone("help").stdout
    for names in (["groups"], ["groups", "reset-offsets"]):
        shown, _, example = run_alone("help", *names).stdout.partition(b"\nExample:\n")
        assert shown.splitlines()[1:] == run_alone(*names, "--help").stdout.splitlines()[1:]
    assert example.startswith(b"  broker groups reset-offsets ")
    assert b"There is no command 'groups nosuch'" in run_alone("help", "groups", "nosuch", fails=2).stderr
