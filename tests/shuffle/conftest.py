from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.shuffle.harness import Served, serving


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start a server with these settings; its accounts are checked at the end of the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Served:
            return stack.enter_context(serving(tmp_path, **settings))

        yield start


@pytest.fixture
def server(serve: Callable[..., Served]) -> Served:
    return serve()
