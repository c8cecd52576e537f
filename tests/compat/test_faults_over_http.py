"""Tests in other languages: kafkajs meets faults that its own program has added over HTTP, and docs/TESTING.md is right."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client import Broker
from tests.compat.clients import java, skip_if_missing
from tests.compat.clients.node import Kafkajs, node_modules


def test_kafkajs_meets_the_faults_that_its_program_adds() -> None:
    client = Kafkajs()
    skip_if_missing(client)
    with Broker(listeners=["kafka://127.0.0.1:0", "http://127.0.0.1:0"], faults_enabled=True) as broker:
        broker.create_topic("orders")
        url = f"http://{broker.address('http')}"
        found = client.run("faults", servers=broker.bootstrap_servers, url=url, topic="orders")
        assert found.pop("refused").startswith("400: ")
        # It repeats what is worth repeating, and reports the rest.
        assert found == {
            "error": "TOPIC_AUTHORIZATION_FAILED",
            "baseOffset": "0",
            "hits": 2,
            "seen": ["kafkajs"],
            "left": [],
        }
        assert [record.value for record in broker.records("orders")] == [b"one book"]
        assert broker.faults.list() == []


def _shell(block: str, _directory: Path) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", block]


def _node(block: str, _directory: Path) -> list[str]:
    skip_if_missing(Kafkajs())
    return ["node", "-e", block]


def _java(block: str, directory: Path) -> list[str]:
    program = directory / "FaultsTest.java"
    program.write_text(block, "utf-8")
    return ["java", *java.QUICK, "-cp", f"{java.jars_or_skip()}/*", str(program)]


@pytest.mark.parametrize(("language", "command", "records"), [("sh", _shell, 0), ("js", _node, 1), ("java", _java, 1)])
def test_the_guide_does_what_it_says(
    language: str, command: Callable[[str, Path], list[str]], records: int, tmp_path: Path
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "TESTING.md").read_text("utf-8")
    section = text.partition("## From other languages\n")[2].partition("\n## ")[0]
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    with Broker(
        listeners=["kafka://127.0.0.1:0", "http://127.0.0.1:0"], faults_enabled=True, create_topics=["orders:3"]
    ) as broker:
        block = block.replace("localhost:8080", broker.address("http"))
        block = block.replace("localhost:9092", broker.bootstrap_servers)
        result = subprocess.run(
            command(block, tmp_path),
            env={**os.environ, **({"NODE_PATH": str(node_modules())} if language == "js" else {})},
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        assert broker.faults.list() == []
        assert len(broker.records("orders")) == records
