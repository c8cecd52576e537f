from collections.abc import Iterator

import pytest

from tests.http.harness import HttpBench, http_bench


@pytest.fixture
def bench() -> Iterator[HttpBench]:
    with http_bench() as made:
        yield made
