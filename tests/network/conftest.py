"""Fixtures of the reactor's tests."""

from collections.abc import Callable, Iterator

import pytest

from tests.network.harness import Bench
from tests.network.tls_client import TlsClient, listener


@pytest.fixture(params=["plaintext", "tls"])
def bench(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    """Makes benches, and closes them. What holds for a connection holds with TLS."""
    made: list[Bench] = []
    secured: dict[str, object] = {"tls": listener(), "client": TlsClient} if request.param == "tls" else {}

    def make(*arguments: object, **keywords: object) -> Bench:
        keywords = {**secured, **keywords}
        made.append(Bench(*arguments, **keywords))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()
