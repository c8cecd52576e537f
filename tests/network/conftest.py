"""Fixtures of the reactor's tests."""

from collections.abc import Callable, Iterator

import pytest

from tests.network.harness import Bench


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    """Makes benches, and closes them."""
    made: list[Bench] = []

    def make(*arguments: object, **keywords: object) -> Bench:
        made.append(Bench(*arguments, **keywords))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()
