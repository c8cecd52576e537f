from pathlib import Path

import pytest

from tests.kafka.groups.office import Office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)
