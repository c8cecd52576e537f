"""PostgreSQL's primary is lost, and its synchronous replica takes its place, under a broker whose URL names both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable.durable_broker import DurableBroker
from tests.durable.mixed_load import SCHEMES, SETTINGS, MixedLoad
from tests.durable.postgres import PostgresServer, SynchronousPair

pytestmark = pytest.mark.slow
SEED = 1


@pytest.fixture
def pair() -> Iterator[SynchronousPair]:
    if not PostgresServer.installed():
        pytest.skip("PostgreSQL is not installed")
    pair = SynchronousPair()
    yield pair
    pair.stop()


def test_nothing_is_lost_with_the_primary(tmp_path: Path, pair: SynchronousPair) -> None:
    """Nor with the broker, after that: another one finds everything in what was the replica."""
    with DurableBroker(tmp_path, pair, *SETTINGS, schemes=SCHEMES) as broker, MixedLoad(broker, SEED) as load:
        load.go_on()
        pair.primary.kill()
        pair.standby.promote()
        load.go_on()
        broker.kill()
        broker.start()
        load.go_on()
        load.finish()
        load.check()
