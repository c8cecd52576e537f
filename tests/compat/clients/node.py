"""kafkajs, @platformatic/kafka and pulsar-flex: installed with npm into the user's cache the first time, driven through
../node/*.cjs.

kafkajs was last released in 2023 and speaks old versions; @platformatic/kafka speaks none that is older than Kafka 3.5.
pulsar-flex is an implementation of Pulsar's protocol that has nothing in common with Pulsar's own clients.
"""

import base64
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

from tests.compat.clients.record import TIMESTAMP, Record

_HERE = Path(__file__).parent.parent / "node"
_INSTALL_S = 120.0
_COMMAND_S = 120.0


class _Node:
    name: str
    script: str

    def missing(self) -> str | None:
        modules = node_modules()
        return modules if isinstance(modules, str) else None

    def produce(self, servers: str, topic: str, partition: int, records: list[Record], codec: str, acks: int) -> None:
        self.run(
            "produce",
            servers=servers,
            topic=topic,
            partition=partition,
            records=self.encoded(records),
            codec=codec,
            acks=acks,
            idempotent=False,
        )

    def encoded(self, records: list[Record]) -> list[dict[str, Any]]:
        """As the scripts take them."""
        return [
            {
                "key": _encode(record.key),
                "value": _encode(record.value),
                "headers": [(name, _encode(value)) for name, value in record.headers],
                "timestamp": TIMESTAMP + number,
            }
            for number, record in enumerate(records)
        ]

    def decoded(self, text: str | None) -> bytes | None:
        """A key or a value as the scripts give it."""
        return _decode(text)

    def consume(self, servers: str, topic: str, count: int) -> dict[int, list[Record]]:
        consumed: dict[int, list[Record]] = {}
        for record in self.run("consume", servers=servers, topic=topic, count=count, group=f"node-{uuid.uuid4()}"):
            headers = tuple((name, _decode(value)) for name, value in record["headers"])
            consumed.setdefault(record["partition"], []).append(
                Record(_decode(record["key"]), _decode(record["value"]), headers)
            )
        return consumed

    def run(self, command: str, **arguments: Any) -> Any:
        """The result of a command of the script. AssertionError with what it said if it fails."""
        modules = node_modules()
        assert isinstance(modules, Path), modules
        result = subprocess.run(
            ["node", str(_HERE / self.script), command],
            input=json.dumps(arguments),
            env={**os.environ, "NODE_PATH": str(modules)},
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=_COMMAND_S,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)


class Kafkajs(_Node):
    name = "kafkajs"
    script = "kafkajs.cjs"
    # lz4 and zstd take modules that are compiled when they are installed.
    codecs = ("none", "gzip", "snappy")
    too_large = "MESSAGE_TOO_LARGE"

    def can_write(self, record: Record) -> bool:
        return all(value is not None for _, value in record.headers)


class Platformatic(_Node):
    name = "platformatic"
    script = "platformatic.cjs"
    too_large = "MESSAGE_TOO_LARGE"

    # Its snappy knows raw blocks only, and neither reads nor writes the framing that Kafka's own client put around them.
    @property
    def codecs(self) -> tuple[str, ...]:
        return ("none", "gzip", "lz4", "zstd") if _node_has_zstd() else ("none", "gzip", "lz4")

    def can_write(self, record: Record) -> bool:
        return True


class PulsarFlex(_Node):
    name = "pulsar-flex"
    script = "pulsarflex.cjs"


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def cache() -> Path:
    """Where what the tests have fetched is kept from one run to the next."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reactor-broker-tests"


@functools.cache
def _node_has_zstd() -> bool:
    result = subprocess.run(["node", "-p", "typeof require('zlib').zstdCompressSync"], capture_output=True, check=True)
    return result.stdout.strip() == b"function"


@functools.cache
def node_modules() -> Path | str:
    """The directory ``node_modules`` with all of them, or why there is none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node and npm are not installed"
    sources = [_HERE / "package.json", _HERE / "package-lock.json"]
    node = subprocess.run(["node", "--version"], capture_output=True, check=True).stdout
    state = hashlib.sha256(node + b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = cache() / f"node-{state}"
    if target.is_dir():
        return target / "node_modules"
    try:
        cache().mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=cache()))
    except OSError as error:
        return f"no place to install them: {error}"
    try:
        for path in sources:
            shutil.copy(path, unfinished)
        # Nothing of them needs to run when it is installed, so nothing may.
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1"]
        result = subprocess.run(command, cwd=unfinished, capture_output=True, check=False, timeout=_INSTALL_S)
        if result.returncode != 0:
            said = " ".join(result.stderr.decode(errors="replace").split())
            return f"npm could not install them: {said[:200]}"
        os.rename(unfinished, target)  # whole or not at all; a run at the same time does the same
    except subprocess.TimeoutExpired:
        return f"npm took more than {_INSTALL_S:.0f} s to install them"
    except OSError as error:
        if not target.is_dir():
            return f"they could not be installed: {error}"
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target / "node_modules"
