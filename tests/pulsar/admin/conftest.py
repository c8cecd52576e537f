"""A broker with pulsar:// and http:// listeners, and what tests ask of its admin API."""

from collections.abc import Iterator

import pytest

from tests.pulsar.admin.harness import Admin, admin_broker


@pytest.fixture
def admin() -> Iterator[Admin]:
    with admin_broker() as made:
        yield made
