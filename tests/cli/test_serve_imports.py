"""What a broker with one Kafka listener has imported once it serves: a third of its memory and most of its start are imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.rest import SERVED

# Packages that other listeners, settings or commands need, with what they stand for. structlog brings asyncio,
# ssl and logging.
NOT_NEEDED = {
    "cramjam": "compressed batches that the broker looks into",
    "cryptography": "TLS, tokens",
    "google": "protobuf: Pulsar",
    "h11": "HTTP",
    "importlib.metadata": "versions",
    "importlib.resources": "the page",
    "jwt": "tokens",
    "kafka": "other commands",
    "lz4": "compressed batches that the broker looks into",
    "numpy": "Spark",
    "obstore": "object stores",
    "opentelemetry": "traces",
    "prometheus_client": "tests",
    "psycopg": "PostgreSQL",
    "pyarrow": "Spark",
    "re2": "subscriptions by expression",
    "rich": "other commands; structlog imports it where nobody prevents it",
    "broker.client": "clients",
    "broker.cluster.lease": "PostgreSQL",
    "broker.cluster.owner": "PostgreSQL",
    "broker.http": "HTTP",
    "broker.kafka.views": "HTTP",
    "broker.pulsar": "Pulsar",
    "broker.runtime.tls": "TLS",
    "broker.runtime.tls_context": "TLS",
    "broker.shuffle": "shuffle",
    "broker.spark": "Spark",
    "broker.storage.journal": "PostgreSQL",
    "broker.storage.repair": "other commands",
    "protocol.pulsar": "Pulsar",
    "protocol.shuffle": "shuffle",
    "protocol.translation": "Pulsar",
    "kio.index": "clients",
}
# 339 when this was written, of 660. Who raises it says what a broker that only serves Kafka needs it for.
OWN_MODULES_MAX = 350


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Those of a broker that has started, has written events, and has stopped. Without those of the interpreter itself, which the
    environment may add to by `.pth` files."""
    directory: Path = tmp_path_factory.mktemp("data")
    bare = subprocess.run([sys.executable, "-c", "import json, sys; print(json.dumps(list(sys.modules)))"],
                          capture_output=True, check=True)  # fmt: skip
    served = subprocess.run([sys.executable, "-c", SERVED, str(directory)], capture_output=True, check=True)
    there: list[str] = json.loads(served.stdout)
    return sorted(set(there) - set(json.loads(bare.stdout)))


def test_a_broker_for_kafka_imports_nothing_that_others_need(modules: list[str]) -> None:
    loaded = {
        f"{package}, for {purpose}"
        for package, purpose in NOT_NEEDED.items()
        if any(module == package or module.startswith(package + ".") for module in modules)
    }
    assert set() == loaded


def test_the_number_of_its_own_modules_is_bounded(modules: list[str]) -> None:
    own = [module for module in modules if module.split(".")[0] in ("broker", "protocol")]
    assert len(own) <= OWN_MODULES_MAX
