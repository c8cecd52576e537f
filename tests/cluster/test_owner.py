"""Owners in processes of their own, which are killed and stopped, and an engine that goes away."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import log
from broker.cluster.owner import Callbacks, Owner
from broker.errors import ConfigError, Fenced
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_owner import OwnerSession
from broker.runtime.clock import SystemClock
from broker.runtime.threads import SystemThreads
from tests.durable.owner_process import GRACE_S
from tests.durable.postgres import PostgresServer, fresh_schema, shared_server
from tests.waiting import wait_for

LEASE_S = 120.0
ROOT = Path(__file__).parent.parent.parent


class OwnerProcess:
    def __init__(self, server: PostgresServer, schema: str, holder: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.durable.owner_process", server.url, schema, holder, "wait"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def says(self, line: str, times: int = 1) -> None:
        wait_for(lambda: self.lines.count(line) >= times, f"{line} was not said: {self.lines}")

    def stores(self, number: int) -> None:
        """The next row."""
        self.append()
        self.says(f"stored {number}")

    def append(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("append\n")
        self.process.stdin.flush()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


MakeProcess = Callable[..., OwnerProcess]


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    """What this process logs."""
    written: list[dict[str, Any]] = []
    put_back = log.configure("info", "json", write_line=lambda line: written.append(json.loads(line)))
    yield written
    put_back()


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """For those that kill it."""
    if not PostgresServer.installed():
        pytest.skip("PostgreSQL is not installed")
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def schema() -> str:
    return fresh_schema()


@pytest.fixture
def start() -> Iterator[MakeProcess]:
    started: list[OwnerProcess] = []

    def make(server: PostgresServer, schema: str, holder: str, says: str) -> OwnerProcess:
        started.append(OwnerProcess(server, schema, holder))
        started[-1].says(says)
        return started[-1]

    yield make
    for process in started:
        process.close()


def owner_backends(server: PostgresServer, schema: str) -> int:
    """Sessions of owners and standbys."""
    with server.connect() as own:
        ((count,),) = own.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = to_regclass(%s)::oid",
            (f"{schema}.owner",),
        ).fetchall()
    return int(count)  # type: ignore[call-overload,no-any-return]


def new_owner(server: PostgresServer, schema: str, holder: str = "here", *, answer_s: float = 20.0) -> Owner:
    """In this process. Its lease does not run out during a test, however busy the machine is."""
    address = Address(server.url, schema)
    return Owner(
        lambda: OwnerSession(address, answer_s),
        SystemClock(),
        SystemThreads(),
        holder=holder,
        address="127.0.0.1:9092",
        lease_s=LEASE_S,
        margin_s=0.2,
        renew_s=0.5,
    )


def acquired(*arguments: Any, **settings: Any) -> Owner:
    owner = new_owner(*arguments, **settings)
    assert owner.acquire(wait=False)
    return owner


def test_the_first_owner_has_epoch_one_and_leads(server: PostgresServer, schema: str) -> None:
    owner = acquired(server, schema)
    assert (1, 0, True) == (owner.epoch, owner.number, owner.is_leading())
    assert owner.stop()


def test_a_second_broker_is_told_who_owns_the_catalogue(server: PostgresServer, schema: str) -> None:
    first = acquired(server, schema, "host-a:17")
    with pytest.raises(ConfigError, match=r"Another broker \(host-a:17, 127\.0\.0\.1:9092\) owns .* --standby"):
        new_owner(server, schema).acquire(wait=False)
    assert first.stop()


@pytest.mark.parametrize("tables", ["CREATE TABLE schema_version (version int)", "CREATE TABLE owner (name text)"])
def test_a_schema_with_tables_of_others_is_refused(server: PostgresServer, schema: str, tables: str) -> None:
    with server.connect() as own:
        own.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}; {tables}".encode())
        with pytest.raises(ConfigError, match=f"the schema {schema} in .* has tables that are no broker's"):
            new_owner(server, schema).acquire(wait=False)
        ((count,),) = own.execute("SELECT count(*) FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
    assert 1 == count


def test_owners_of_two_schemas_do_not_meet(server: PostgresServer) -> None:
    first, second = new_owner(server, fresh_schema()), new_owner(server, fresh_schema())
    assert (True, True) == (first.acquire(wait=False), second.acquire(wait=False))
    assert (True, True) == (first.stop(), second.stop())


def test_an_owner_that_has_stopped_is_followed_at_once(server: PostgresServer, schema: str) -> None:
    for epoch in (1, 2, 3):
        owner = acquired(server, schema)
        owner.start(lambda error: None)
        assert epoch == owner.epoch
        assert owner.stop()


def test_a_standby_that_is_told_to_stop_gives_up(
    server: PostgresServer, schema: str, events: list[dict[str, Any]]
) -> None:
    first, second = new_owner(server, schema, "host-a:17"), new_owner(server, schema)
    assert first.acquire(wait=False)
    asked = itertools.count()
    assert not second.acquire(wait=True, stopped=lambda: next(asked) > 2)
    assert second.epoch == 0
    (event,) = [event for event in events if event["event"] == "standing_by"]
    assert ("host-a:17", "127.0.0.1:9092", 1) == (event["holder"], event["address"], event["epoch"])
    assert second.stop()
    assert first.stop()


def test_the_lease_is_renewed_for_as_long_as_the_owner_runs(server: PostgresServer, schema: str) -> None:
    owner, told = new_owner(server, schema), []
    assert owner.acquire(wait=False)
    owner.callbacks = Callbacks(
        *[lambda *_, what=what: told.append(what) for what in ("suspended", "resumed", "fenced")]
    )
    until = owner.lease.until
    owner.start(lambda error: told.append(repr(error)))
    wait_for(lambda: owner.lease.until > until + 2, "not renewed")
    assert ([], True) == (told, owner.is_leading())
    assert owner.stop()


def test_a_row_that_is_locked_for_long_does_not_cost_the_owner_its_lock(
    server: PostgresServer, schema: str, events: list[dict[str, Any]]
) -> None:
    """As by an append of the journal whose commit waits for the server's disk, while another broker stands by."""
    first, second = new_owner(server, schema, answer_s=1.0), new_owner(server, schema)
    assert first.acquire(wait=False)
    stopping = threading.Event()
    standby = threading.Thread(target=lambda: second.acquire(wait=True, stopped=stopping.is_set))
    standby.start()
    wait_for(lambda: "standing_by" in [event["event"] for event in events], "nobody stands by")
    first.start(lambda error: None)
    with server.connect() as other, other.transaction():
        other.execute(f'SELECT 1 FROM "{schema}".owner FOR UPDATE'.encode())
        wait_for(lambda: "engine_away" in [event["event"] for event in events], "the row is not waited for")
    wait_for(lambda: "engine_back" in [event["event"] for event in events], "the lease is not renewed")
    stopping.set()
    standby.join()
    assert (0, True) == (second.epoch, first.is_leading())
    assert first.stop()
    assert second.stop()


def test_a_killed_owner_is_followed_at_once_with_the_next_epoch(
    server: PostgresServer, schema: str, start: MakeProcess
) -> None:
    first = start(server, schema, "first", "acquired 1")
    for number in (1, 2):
        first.stores(number)
    second = start(server, schema, "second", "waiting")
    first.send(signal.SIGKILL)
    second.says("acquired 2")
    second.stores(3)


def test_nothing_that_an_earlier_owner_writes_to_the_catalogue_is_stored(server: PostgresServer, schema: str) -> None:
    first = acquired(server, schema)
    database = PostgresDatabase(Address(server.url, schema))
    database.epoch = first.epoch
    database.write(lambda cursor: cursor.execute("INSERT INTO meta VALUES ('a', 'by the first')"))
    assert first.stop()
    second = acquired(server, schema)
    with pytest.raises(Fenced):
        database.write(lambda cursor: cursor.execute("INSERT INTO meta VALUES ('b', 'too late')"))
    database.epoch = second.epoch
    database.write(lambda cursor: cursor.execute("INSERT INTO meta VALUES ('c', 'by the second')"))
    assert [("a",), ("c",)] == database.read("SELECT key FROM meta WHERE key < 'd' ORDER BY key")
    database.close()
    assert second.stop()


def test_an_owner_that_stands_still_is_followed_after_its_lease_and_fenced_when_it_wakes(
    server: PostgresServer, schema: str, start: MakeProcess
) -> None:
    first = start(server, schema, "first", "acquired 1")
    first.stores(1)
    second = start(server, schema, "second", "waiting")
    first.send(signal.SIGSTOP)
    second.says("acquired 2")
    second.stores(2)
    first.append()  # in its pipe: it is the first that the process does
    first.send(signal.SIGCONT)
    first.says("refused")
    first.says("fenced")
    assert "stored 2" not in first.lines
    third = start(server, schema, "third", "waiting")
    second.send(signal.SIGKILL)
    third.says("acquired 3")


def test_brokers_that_start_together_agree_on_one_owner(server: PostgresServer) -> None:
    for _ in range(5):
        schema, stop = fresh_schema(), threading.Event()
        owners = [new_owner(server, schema) for _ in range(4)]
        threads = [threading.Thread(target=owner.acquire, args=(True, stop.is_set)) for owner in owners]
        for thread in threads:
            thread.start()
        wait_for(lambda schema=schema: owner_backends(server, schema) == 4)  # type: ignore[misc]
        wait_for(lambda owners=owners: any(owner.epoch for owner in owners))  # type: ignore[misc]
        stop.set()
        for thread in threads:
            thread.join()
        assert [0, 0, 0, 1] == sorted(owner.epoch for owner in owners)
        assert all(owner.stop() for owner in owners)


def test_a_broker_that_has_the_lock_and_stands_still_does_not_hold_up_others(
    server: PostgresServer, schema: str
) -> None:
    still = OwnerSession(Address(server.url, schema), 3.0)
    assert still.lock(0)  # and it goes no further
    owner = new_owner(server, schema)
    assert owner.acquire(wait=True)
    assert 1 == owner.epoch
    still.close()
    assert owner.stop()


def test_a_standby_ends_cleanly_when_it_is_terminated_while_it_waits(
    server: PostgresServer, schema: str, start: MakeProcess
) -> None:
    start(server, schema, "first", "acquired 1")
    second = start(server, schema, "second", "waiting")
    wait_for(lambda: owner_backends(server, schema) == 2)
    second.send(signal.SIGTERM)
    second.says("gave up")
    assert 0 == second.process.wait(30)
    wait_for(lambda: owner_backends(server, schema) == 1)


def test_an_owner_suspends_while_the_engine_is_away_and_goes_on_with_the_same_epoch(
    own_server: PostgresServer, schema: str, start: MakeProcess
) -> None:
    first = start(own_server, schema, "first", "acquired 1")
    first.stores(1)
    own_server.kill()
    first.says("suspended")
    own_server.start()
    first.says("resumed")
    first.stores(2)
    assert [] == [line for line in first.lines if line.startswith(("fenced", "refused", "acquired 2"))]


def test_a_standby_lets_the_owner_come_back_after_the_engine_was_away(
    own_server: PostgresServer, schema: str, start: MakeProcess
) -> None:
    first = start(own_server, schema, "first", "acquired 1")
    second = start(own_server, schema, "second", "waiting")
    for times in (1, 2):
        own_server.kill()
        first.says("suspended", times)
        own_server.start()
        first.says("resumed", times)
    time.sleep(GRACE_S + 1)  # longer than the time for which the standby leaves the lock to the owner
    assert (True, False) == ("acquired 1" in first.lines, "acquired 2" in second.lines)
    first.send(signal.SIGKILL)
    second.says("acquired 2")


def test_a_broker_that_starts_while_the_engine_is_away_waits_for_it(
    own_server: PostgresServer, schema: str, events: list[dict[str, Any]]
) -> None:
    own_server.kill()
    owner, acquired = new_owner(own_server, schema), threading.Event()
    threading.Thread(target=lambda: owner.acquire(wait=False) and acquired.set(), daemon=True).start()
    wait_for(lambda: any(event["event"] == "waiting_for_engine" for event in events), "it does not say so")
    assert not acquired.is_set()
    own_server.start()
    wait_for(acquired.is_set, "not acquired")
    (event,) = [event for event in events if event["event"] == "waiting_for_engine"]
    assert f"127.0.0.1:{own_server.port}" in event["error"]
    assert "p%w/d" not in str(events)
    assert owner.stop()


def test_an_engine_that_stands_still_suspends_the_owner(
    own_server: PostgresServer, schema: str, start: MakeProcess
) -> None:
    first = start(own_server, schema, "first", "acquired 1")
    own_server.pause()
    first.says("suspended")
    own_server.go_on()
    first.says("resumed")


def test_transactions_of_an_owner_that_stands_still_do_not_hold_up_the_next_one(
    server: PostgresServer, schema: str
) -> None:
    owner = acquired(server, schema)
    assert owner.stop()
    with server.connect() as still:
        still.execute(f"SELECT 1 FROM {schema}.owner FOR KEY SHARE")
        # In autocommit this is over at once; in a transaction it stays.
        still.execute("BEGIN")
        still.execute(f"SELECT 1 FROM {schema}.owner FOR KEY SHARE")
        following = acquired(server, schema)
        assert 2 == following.epoch
        assert following.stop()
        still.close()
