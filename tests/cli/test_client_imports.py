"""What small commands import: their CPU is hardly anything else."""

import json
import subprocess
import sys

import pytest

NOT_NEEDED = {
    *(
        "argparse",
        "asyncio",
        "cramjam",
        "cryptography",
        "importlib.metadata",
        "importlib.resources",
        "kafka",
        "logging",
    ),
    *("lz4", "numpy", "pyarrow", "re2", "rich", "sqlite3", "structlog", "tomllib"),
    *("broker.config", "broker.metadata", "broker.network", "broker.server", "broker.storage"),
}
# What the two commands import when they are called, and what they use by then.
COMMANDS = {
    "topics": "broker.cli.topics, broker.client.kafka.cluster, broker.client.kafka.admin.configs",
    "consume": "broker.cli.consume, broker.cli.record_reader, broker.client.kafka.fetcher",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_imports_only_the_client(command: str) -> None:
    code = f"import json, sys; there = set(sys.modules); import broker.cli.main, {COMMANDS[command]}; "
    code += "print(json.dumps(sorted(set(sys.modules) - there)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert set() == NOT_NEEDED.intersection(loaded)
