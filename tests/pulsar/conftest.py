from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.client.embedded import Broker
from tests.pulsar.wire import Wire


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0", "kafka://127.0.0.1:0"]) as broker:
        yield broker


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[..., Wire]]:
    """Connect a client that speaks the protocol by hand."""
    with ExitStack() as stack:

        def connect(**fields: Any) -> Wire:
            wire = Wire(broker.address("pulsar"), **fields)
            stack.callback(wire.close)
            return wire

        yield connect
