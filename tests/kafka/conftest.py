from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.metadata.sqlite import SqliteCatalogue
from tests.kafka.handlers.kafka_client import Kafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """A broker for all tests of a module. A module that needs another one has a fixture of this name itself."""
    with Kafka() as kafka:
        yield kafka


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[SqliteCatalogue]:
    catalogue = SqliteCatalogue(str(tmp_path / "catalogue"))
    yield catalogue
    catalogue.close()
