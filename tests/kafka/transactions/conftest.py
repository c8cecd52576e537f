from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.transactions.transaction_harness import TransactionHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[TransactionHarness]:
    harness = TransactionHarness(tmp_path / "data")
    yield harness
    harness.close()
