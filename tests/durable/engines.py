"""The database is killed while it commits, or the database or the object store is away for long, under all kinds of load.

``python -m tests.durable.engines --kills 12 --away 60`` (``make durable-engines``) does it for long and says what was checked,
how much memory and disk the broker took meanwhile, and when everybody had caught up. ``test_engines_away.py`` does it for short.
"""

import argparse
import contextlib
import http.client
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from tests.durable.durable_broker import DurableBroker, durable_postgres
from tests.durable.mixed_load import SCHEMES, SETTINGS, MixedLoad, first_acknowledged
from tests.durable.postgres import PostgresServer
from tests.durable.proxy import Proxy
from tests.durable.s3_server import BUCKET, fresh_prefix, shared_seaweed
from tests.process.broker_process import PATIENCE_S

MIB = 1024 * 1024
CROWD = (300_000,) * 10  # together they have 60 MB under way


@attrs.frozen
class Absence:
    """``memory`` and ``disk``: by how many bytes the broker's grew at most. ``first_s``: from the engine's return until a send
    that began after it was acknowledged; ``all_s``: until every client had got further."""

    memory: int
    disk: int
    first_s: float
    all_s: float

    def __str__(self) -> str:
        return (
            f"memory grew by {self.memory / MIB:.0f} MiB, disk by {self.disk / MIB:.0f} MiB; first acknowledgement "
            f"{self.first_s:.1f} s after its return, everybody after {self.all_s:.1f} s"
        )


def absence(
    broker: DurableBroker, load: MixedLoad, away_s: float, leave: Callable[[], None], come_back: Callable[[], None]
) -> Absence:
    """HTTP is answered at once all the while. Returns when every client has got further."""
    leader = broker.leader
    assert leader is not None
    load.go_on()
    before = leader.resident_bytes, used(leader.data_dir)
    most = before
    leave()
    ends = time.monotonic() + away_s
    while time.monotonic() < ends:
        assert 200 == health(broker)
        most = max(most[0], leader.resident_bytes), max(most[1], used(leader.data_dir))
        time.sleep(0.5)
    come_back()
    returned = time.monotonic()
    first_acknowledged(broker.address)
    first_s = time.monotonic() - returned
    load.go_on()
    return Absence(most[0] - before[0], most[1] - before[1], first_s, time.monotonic() - returned)


def health(broker: DurableBroker) -> int:
    """The status of an HTTP request. What is away comes back only after it."""
    connection = http.client.HTTPConnection(broker.addresses["http"], timeout=PATIENCE_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def used(directory: Path) -> int:
    """Bytes that its files take."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


@contextlib.contextmanager
def checked(broker: DurableBroker, seed: int, crowd: tuple[int, ...] = ()) -> Iterator[MixedLoad]:
    """A load that is compared with what is there in the end."""
    with MixedLoad(broker, seed, crowd=crowd) as load:
        yield load
        load.finish()
        for name, found in load.check().items():
            print(f"  {name}: {found}", flush=True)
    print("  Nothing was lost or doubled.", flush=True)


def kill_database(directory: Path, postgres: PostgresServer, seed: int, kills: int) -> None:
    """With a standby, which may take over or not."""
    chance = random.Random(seed)
    settings = (*SETTINGS, "catalogue_schema=kills")
    with (
        DurableBroker(directory, postgres, *settings, schemes=SCHEMES) as broker,
        checked(broker, seed) as load,
    ):
        print(f"The database is killed {kills} times.", flush=True)
        for _ in range(kills):
            load.go_on()
            time.sleep(chance.uniform(0.0, 0.5))
            postgres.kill()
            postgres.start()
        load.go_on()


def leave_database(directory: Path, postgres: PostgresServer, seed: int, away_s: float) -> None:
    settings = (*SETTINGS, "catalogue_schema=database_away")
    with (
        DurableBroker(directory, postgres, *settings, schemes=SCHEMES, standbys=0) as broker,
        checked(broker, seed, CROWD) as load,
    ):
        print(f"The database is away for {away_s:.0f} s.", flush=True)
        print(f"  {absence(broker, load, away_s, postgres.kill, postgres.start)}", flush=True)


def leave_store(directory: Path, postgres: PostgresServer, seed: int, away_s: float) -> None:
    server = shared_seaweed()
    proxy = Proxy(server.port)
    environment = {**server.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
    objects = f"s3://{BUCKET}/{fresh_prefix()}"
    settings = (*SETTINGS, "catalogue_schema=store_away")

    def leave() -> None:
        proxy.refusing = True
        proxy.cut()

    def come_back() -> None:
        proxy.refusing = False

    with (
        contextlib.closing(proxy),
        DurableBroker(
            directory, postgres, *settings, schemes=SCHEMES, objects=objects, standbys=0, environment=environment
        ) as broker,
        checked(broker, seed, CROWD) as load,
    ):
        print(f"The object store is away for {away_s:.0f} s.", flush=True)
        print(f"  {absence(broker, load, away_s, leave, come_back)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durable.engines")
    parser.add_argument("--kills", type=int, default=12, help="of the database; 0: leave it out")
    parser.add_argument(
        "--away", type=float, default=60, help="seconds, of the database and of the store; 0: leave it out"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="engines-") as root, durable_postgres() as postgres:
        if given.kills:
            kill_database(Path(root, "kills"), postgres, given.seed, given.kills)
        if given.away:
            leave_database(Path(root, "database"), postgres, given.seed, given.away)
            leave_store(Path(root, "store"), postgres, given.seed, given.away)
    return 0


if __name__ == "__main__":
    sys.exit(main())
