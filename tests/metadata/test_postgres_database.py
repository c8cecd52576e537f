"""Connections and transactions on a real PostgreSQL: what keeps a broker from using one, lost connections, and the fence."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from broker.errors import ConfigError, Fenced, StorageError, UnknownOutcome
from broker.metadata import postgres_connection, postgres_database, postgres_layouts
from broker.metadata.postgres_connection import Address, Connection, Cursor
from broker.metadata.postgres_database import PostgresDatabase
from tests.durable.postgres import PostgresServer, fresh_schema, shared_server
from tests.durable.proxy import Proxy, TransactionPooler
from tests.waiting import wait_for


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """One to be killed."""
    shared_server()  # skips
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(Address.parse(server.url, fresh_schema()))
    yield database
    database.close()


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


def through(port: int, url: str) -> str:
    return url.replace(f":{urlsplit(url).port}/", f":{port}/")


Change = Callable[[Cursor], None]


def put(key: str, value: str) -> Change:
    sql = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    return lambda cursor: void(cursor.execute(sql, (key, value)))


def add(cursor: Cursor) -> None:
    cursor.execute("UPDATE producer_ids SET next = next + 1")


def void(_: object) -> None: ...


def count(database: PostgresDatabase) -> int:
    ((number,),) = database.read("SELECT next FROM producer_ids")
    return int(number)


def has_waiter(server: PostgresServer) -> bool:
    """Whether a session waits for a lock."""
    with server.connect() as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return connection.execute(sql).fetchall() != [(0,)]


def test_without_psycopg_one_is_told_what_to_install() -> None:
    script = "import sys; sys.modules['psycopg'] = None; import broker.metadata.postgres"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stderr
    assert said.splitlines()[-1].startswith("broker.errors.ConfigError: Install the extra postgres")


def test_the_catalogue_in_sqlite_does_not_import_psycopg() -> None:
    script = "import sys; import broker.server; print('psycopg' in sys.modules)"
    assert (
        "False\n" == subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    )


# Opening --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:secret@host/db",
        "postgresql://user:se/cret@host/db",
        "postgresql://user:secret@host:port/db",
        "postgresql://user:secret@host/db?secret=1",
        "postgresql://user:sec%ret@host/db",
        "postgresql://user:12/cret@host/db",
        "postgresql://user:se@cret@host/db",
    ],
)
def test_wrong_url_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Address.parse(url)
    assert "cret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("schema", ["", "Broker", "a-b", "1a", "pg_own", "a" * 49, 'a"b', "é"])
def test_schema_must_be_a_plain_name(schema: str) -> None:
    with pytest.raises(ConfigError, match="schema"):
        Address.parse("postgresql://host/db", schema)


def test_password_is_in_no_message_and_no_repr(server: PostgresServer) -> None:
    address = Address.parse(server.url.replace("p%25w", "wr%25ng"))
    with pytest.raises(ConfigError, match="password authentication failed") as refused:
        PostgresDatabase(address)
    assert "wr%" not in str(refused.value)
    assert "wr%" not in repr(address)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://user:secret@host/db", "host:5432/db"),
        ("postgresql://user:secret@a:5433,b:5434/db", "a:5433,b:5434/db"),
        ("postgresql://a,b:5434/db", "a:5432,b:5434/db"),
        ("postgresql://user@a,b", "a:5432,b:5432/user"),
    ],
)
def test_messages_name_all_hosts_with_their_ports(url: str, place: str) -> None:
    assert place == Address.parse(url).place()


def test_unreachable_server_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"localhost:1/db cannot be used: .*refused"):
        PostgresDatabase(Address.parse("postgresql://localhost:1/db"))


def test_server_that_is_lost_while_the_tables_are_made_is_waited_for(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[Connection] = []

    def migrate(address: Address, connection: Connection) -> None:
        attempts.append(connection)
        if len(attempts) == 1:
            own_server.kill()
        postgres_layouts.migrate(address, connection)

    monkeypatch.setattr(postgres_database, "migrate", migrate)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(PostgresDatabase, Address.parse(own_server.url), retry_s=60)
        wait_for(lambda: attempts and attempts[0].closed)
        own_server.start()
        database = opening.result()
    database.write(add)
    assert 2 == len(attempts)
    database.close()


def test_old_server_is_refused(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connection, "OLDEST_SERVER", 99)
    with pytest.raises(ConfigError, match=r"is PostgreSQL \d+: version 99 or later is needed"):
        PostgresDatabase(Address.parse(server.url, fresh_schema()))


def test_read_only_database_is_refused(server: PostgresServer) -> None:
    with server.connect() as connection:
        connection.execute("CREATE DATABASE frozen")
        connection.execute("ALTER DATABASE frozen SET default_transaction_read_only = on")
    with pytest.raises(ConfigError, match="is a replica or read-only: connect to the primary"):
        PostgresDatabase(Address.parse(server.url.replace("/postgres", "/frozen")))


def test_database_of_another_encoding_is_refused(server: PostgresServer) -> None:
    with server.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(ConfigError, match="has the encoding LATIN1: UTF8 is needed"):
        PostgresDatabase(Address.parse(server.url.replace("/postgres", "/latin")))


@pytest.mark.parametrize("sessions", [1, 3])
def test_pooler_in_transaction_mode_is_refused(server: PostgresServer, sessions: int) -> None:
    pooler = TransactionPooler(server.url, sessions + 1)
    try:
        with pytest.raises(ConfigError, match="behind a pooler that gives each transaction another session"):
            PostgresDatabase(Address.parse(through(pooler.port, server.url), fresh_schema()))
    finally:
        pooler.close()


def test_user_who_may_not_make_the_schema_is_told(server: PostgresServer) -> None:
    schema = fresh_schema()
    with server.connect() as connection:
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'g'")
        address = Address.parse(f"postgresql://guest:g@127.0.0.1:{server.port}/postgres", schema)
        with pytest.raises(ConfigError, match=f"may not make the schema {schema}"):
            PostgresDatabase(address)
        connection.execute(f"CREATE SCHEMA {schema} AUTHORIZATION guest".encode())
    PostgresDatabase(address).close()


def test_newer_layout_is_refused(server: PostgresServer, database: PostgresDatabase) -> None:
    database.write(lambda cursor: void(cursor.execute("UPDATE schema_version SET version = 99")))
    with pytest.raises(ConfigError, match=r"has layout 99 and this broker knows .*: start the newer broker"):
        PostgresDatabase(database.address)


def test_earlier_layout_is_upgraded(database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    database.write(put("a", "1"))
    later = (*postgres_layouts.LAYOUTS, "CREATE TABLE later (a bigint); INSERT INTO later VALUES (7);")
    monkeypatch.setattr(postgres_layouts, "LAYOUTS", later)
    monkeypatch.setattr(postgres_layouts, "LAYOUT_VERSION", len(later))
    for _ in range(2):
        upgraded = PostgresDatabase(database.address)
        assert [(7,)] == upgraded.read("SELECT a FROM later")
        assert [("a", "1")] == upgraded.read("SELECT key, value FROM meta")
        upgraded.close()


def test_brokers_that_start_together_make_the_tables_once(server: PostgresServer) -> None:
    address = Address.parse(server.url, fresh_schema())
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: PostgresDatabase(address), range(8)))
    assert [(postgres_layouts.LAYOUT_VERSION,)] == opened[0].read("SELECT version FROM schema_version")
    for database in opened:
        database.close()


def test_brokers_with_schemas_of_their_own_share_a_database(server: PostgresServer, database: PostgresDatabase) -> None:
    other = PostgresDatabase(Address.parse(server.url, fresh_schema()))
    database.write(put("a", "1"))
    assert [] == other.read("SELECT key FROM meta")
    other.close()


def test_acknowledged_commits_are_on_disk_whatever_the_server_s_default(server: PostgresServer) -> None:
    with server.connect() as connection:
        connection.execute("CREATE DATABASE hasty")
        connection.execute("ALTER DATABASE hasty SET synchronous_commit = off")
        connection.execute("ALTER DATABASE hasty SET default_transaction_isolation = 'serializable'")
    database = PostgresDatabase(Address.parse(server.url.replace("/postgres", "/hasty")))
    assert [("on",)] == database.read("SHOW synchronous_commit")
    assert [("read committed",)] == database.read("SHOW transaction_isolation")
    database.close()


@pytest.mark.parametrize(
    ("given", "used"), [("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
)
def test_a_commit_waits_for_the_disk_of_a_synchronous_replica(server: PostgresServer, given: str, used: str) -> None:
    address = Address.parse(f"{server.url}?options=-csynchronous_commit%3D{given}", fresh_schema())
    database = PostgresDatabase(address)
    assert [(used,)] == database.read("SHOW synchronous_commit")
    database.close()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://a:1,b:2/c", "a:1,b:2/c"),
        ("postgresql://a,b/c", "a:5432,b:5432/c"),
        ("postgresql://[::1]:7/c", "[::1]:7/c"),
        ("postgresql://u@a/", "a:5432/u"),
        ("postgresql:///c?host=/tmp&port=7", "/tmp:7/c"),
        ("postgresql:///?service=mine", "the service mine"),
    ],
)
def test_the_place_is_named_as_it_was_given(url: str, place: str) -> None:
    assert place == Address.parse(url).place()


def test_server_can_be_reached_over_a_socket_of_the_file_system(server: PostgresServer) -> None:
    url = f"postgresql://{server.user}:p%25w%2Fd@/postgres?host={server.directory}&port={server.port}"
    database = PostgresDatabase(Address.parse(url, fresh_schema()))
    database.write(add)
    assert 1 == count(database)
    database.close()


# Transactions ---------------------------------------------------------------------------------------------------------


def test_what_is_written_can_be_read(database: PostgresDatabase) -> None:
    database.write(put("a", "1"))
    database.write(put("a", "2"))
    assert [("a", "2")] == database.read("SELECT key, value FROM meta WHERE key = %s", ("a",))


def test_change_that_fails_changes_nothing(database: PostgresDatabase) -> None:
    def fails(cursor: Cursor) -> None:
        add(cursor)
        raise StorageError("no")

    with pytest.raises(StorageError, match="no"):
        database.write(fails)
    with pytest.raises(StorageError, match=r'could not be written: .*null value in column "value"'):
        database.write(lambda cursor: (add(cursor), cursor.execute("INSERT INTO meta VALUES ('a', NULL)")))
    assert 0 == count(database)


def test_change_that_goes_on_after_an_error_is_no_success(database: PostgresDatabase) -> None:
    def ignores(cursor: Cursor) -> None:
        with pytest.raises(psycopg.Error):
            cursor.execute("SELECT 1 / 0")

    with pytest.raises(StorageError, match="the server answered ROLLBACK"):
        database.write(ignores)
    database.write(add)
    assert 1 == count(database)


def test_deadlocked_changes_are_made_again(database: PostgresDatabase) -> None:
    database.write(put("a", "0"))
    database.write(put("b", "0"))
    both = threading.Barrier(2)
    one_is_done = threading.Event()
    attempts: list[str] = []

    def crosswise(first: str, second: str) -> Change:
        def change(cursor: Cursor) -> None:
            attempts.append(first)
            if (
                len(attempts) > 2
            ):  # begun before the winner has its second row, it would take that from it: a second deadlock
                one_is_done.wait(30)
            cursor.execute("UPDATE meta SET value = value || %s WHERE key = %s", (first, first))
            if len(attempts) <= 2:
                both.wait()
            cursor.execute("UPDATE meta SET value = value || %s WHERE key = %s", (first, second))

        return change

    def write(order: str) -> None:
        database.write(crosswise(*order))
        one_is_done.set()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write, order) for order in ("ab", "ba")]:
            done.result()
    assert 3 == len(attempts)  # one of them twice
    found = dict(database.read("SELECT key, value FROM meta"))
    assert found["a"] == found["b"]
    assert ["0", "a", "b"] == sorted(found["a"])


def test_more_threads_than_connections_take_turns(server: PostgresServer) -> None:
    database = PostgresDatabase(Address.parse(server.url, fresh_schema()), sessions=2)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(database.write, add) for _ in range(80)]:
            done.result()
    assert 80 == count(database)
    assert 2 >= len(database._idle)
    database.close()


def test_use_after_close_is_a_storage_error(database: PostgresDatabase) -> None:
    database.close()
    with pytest.raises(StorageError, match="it is closed"):
        database.read("SELECT 1")
    with pytest.raises(StorageError, match="it is closed"):
        database.write(add)


# Lost connections -----------------------------------------------------------------------------------------------------


def open_through(proxy: Proxy, server: PostgresServer, retry_s: float = 30.0) -> PostgresDatabase:
    return PostgresDatabase(Address.parse(through(proxy.port, server.url), fresh_schema()), retry_s=retry_s)


@pytest.mark.parametrize("deliver", [False, True])
@pytest.mark.parametrize("text", [b"BEGIN", b"UPDATE producer_ids", b"COMMIT"])
def test_change_is_made_once_wherever_the_connection_is_cut(
    server: PostgresServer, proxy: Proxy, text: bytes, deliver: bool
) -> None:
    database = open_through(proxy, server)
    for number in range(1, 4):
        proxy.cut_at(text, deliver=deliver)
        database.write(add)
        assert number == count(database)
        assert number == proxy.cuts
    database.close()


def test_locks_of_a_session_whose_client_is_gone_are_not_waited_for(
    server: PostgresServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres_connection._SETTINGS, "idle_in_transaction_session_timeout", "0")
    database = open_through(proxy, server)
    database.write(add)
    proxy.cut_at(b"COMMIT", deliver=False)  # the server keeps the transaction open, and its locks
    database.write(add)
    assert 2 == count(database)
    database.close()


@pytest.mark.parametrize("late", [True, False])
def test_outcome_is_looked_up_only_when_the_old_transaction_has_ended(
    server: PostgresServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    # The old session is not ended by order, so it is in the middle of its transaction while its client asks.
    monkeypatch.setattr("broker.metadata.postgres_database.end_backend", lambda *_: None)
    database = open_through(proxy, server)
    proxy.cut_at(b"COMMIT", deliver=False)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(database.write, add)
        if late:
            wait_for(lambda: has_waiter(server))
            proxy.deliver_held()  # now the old session commits; otherwise it ends after IDLE_IN_TRANSACTION_S
        writing.result()
    assert 1 == count(database)
    database.close()


def test_outcome_that_nobody_can_look_up_is_unknown(own_server: PostgresServer) -> None:
    proxy = Proxy(own_server.port)
    database = open_through(proxy, own_server, retry_s=0.2)
    killer: list[object] = []

    def change(cursor: Cursor) -> None:
        add(cursor)
        proxy.cut_at(b"COMMIT", deliver=True)

    # The proxy lets nobody through any more.
    def refuse(client: Any) -> None:
        killer.append(client)
        client.close()

    proxy.serve = refuse  # type: ignore[method-assign]  # for connections from now on
    with pytest.raises(UnknownOutcome):
        database.write(change)
    assert killer
    database.close()
    proxy.close()


def test_server_that_stays_away_is_a_storage_error(own_server: PostgresServer) -> None:
    database = PostgresDatabase(Address.parse(own_server.url), retry_s=0.3)
    database.write(add)
    own_server.kill()
    with pytest.raises(StorageError, match=r"could not be reached: .*refused") as refused:
        database.write(add)
    assert not isinstance(refused.value, UnknownOutcome)
    with pytest.raises(StorageError, match="could not be reached"):
        count(database)
    own_server.start()
    database.write(add)
    assert 2 == count(database)
    database.close()


def test_server_that_stands_still_is_a_storage_error(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = PostgresDatabase(Address.parse(own_server.url), retry_s=0.1)
    database.write(add)
    for session in database._idle:
        session.connection.answer_s = 0.3
    own_server.pause()
    with pytest.raises(StorageError, match=r"did not answer within 0\.3 s"):
        database.write(add)
    own_server.go_on()
    database.write(add)
    assert 2 == count(database)
    database.close()


def test_closing_ends_the_wait_for_a_server(own_server: PostgresServer) -> None:
    database = PostgresDatabase(Address.parse(own_server.url), retry_s=3600)
    own_server.kill()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(database.write, add)
        wait_for(lambda: database._lent == 1)
        database.close()
        with pytest.raises(StorageError):
            waiting.result()


def test_primary_that_becomes_read_only_is_left(server: PostgresServer, database: PostgresDatabase) -> None:
    # As a session of a primary that was demoted: a new connection finds one that can be written to.
    for session in database._idle:
        session.connection.execute("SET default_transaction_read_only = on")
    database.write(add)
    assert 1 == count(database)


# The fence ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def owned(database: PostgresDatabase) -> PostgresDatabase:
    """Its epoch is 1."""
    with database.connection("test") as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS owner (epoch bigint NOT NULL)")
        connection.execute("INSERT INTO owner (epoch) VALUES (1)")
    database.epoch = 1
    return database


def test_owner_of_the_epoch_may_write(owned: PostgresDatabase) -> None:
    owned.write(add)
    assert 1 == count(owned)


def test_owner_of_an_earlier_epoch_writes_nothing_any_more(owned: PostgresDatabase) -> None:
    with owned.connection("test") as connection:
        connection.execute("UPDATE owner SET epoch = 2")
    for _ in range(3):
        with pytest.raises(Fenced, match="epoch 1 is over"):
            owned.write(add)
    assert 0 == count(owned)


def test_change_that_waits_for_a_take_over_is_fenced(server: PostgresServer, owned: PostgresDatabase) -> None:
    with owned.connection("test") as connection, ThreadPoolExecutor(1) as pool:
        with connection.transaction():
            connection.execute("SELECT epoch FROM owner FOR UPDATE")
            waiting = pool.submit(owned.write, add)
            wait_for(lambda: has_waiter(server))
            connection.execute("UPDATE owner SET epoch = 2")
        with pytest.raises(Fenced):
            waiting.result()
    assert 0 == count(owned)


def test_take_over_waits_for_a_change_that_has_begun(server: PostgresServer, owned: PostgresDatabase) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(cursor: Cursor) -> None:
        add(cursor)
        begun.set()
        go_on.wait()

    def take_over() -> int:
        with owned.connection("test") as connection, connection.transaction():
            connection.execute("SELECT epoch FROM owner FOR UPDATE")
            connection.execute("UPDATE owner SET epoch = 2")
            ((number,),) = connection.execute("SELECT next FROM producer_ids").fetchall()
        return int(number)

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(owned.write, slow)
        begun.wait()
        taking = pool.submit(take_over)
        wait_for(lambda: has_waiter(server))
        go_on.set()
        writing.result()
        assert 1 == taking.result()  # the new owner sees it
    with pytest.raises(Fenced):
        owned.write(add)


def test_journal_s_update_of_the_owner_does_not_hold_up_changes(owned: PostgresDatabase) -> None:
    with owned.connection("test") as connection:
        connection.execute("ALTER TABLE owner ADD COLUMN IF NOT EXISTS flushed bigint DEFAULT 0")
        with connection.transaction():
            connection.execute("UPDATE owner SET flushed = 1 WHERE epoch = 1")
            owned.write(add)
    assert 1 == count(owned)


# Snapshots ------------------------------------------------------------------------------------------------------------


def test_snapshot_holds_what_was_written_before_its_moment(database: PostgresDatabase) -> None:
    database.write(add)
    taken: list[int] = []
    snapshot = database.snapshot(lambda: taken.append(count(database)))
    database.write(add)
    assert ([1], [(1,)], 2) == (taken, snapshot.read("SELECT next FROM producer_ids"), count(database))
    snapshot.close()


def test_nothing_is_written_during_a_snapshot_s_moment(database: PostgresDatabase) -> None:
    with ThreadPoolExecutor(1) as pool:
        writing: list[Any] = []

        def moment() -> None:
            writing.append(pool.submit(database.write, add))
            time.sleep(0.05)
            assert not writing[0].done()
            assert 0 == count(database)

        database.snapshot(moment).close()
        writing[0].result()
    assert 1 == count(database)


def test_snapshot_waits_for_changes_that_have_begun(database: PostgresDatabase) -> None:
    begun, go_on, moment = threading.Event(), threading.Event(), threading.Event()

    def slow(cursor: Cursor) -> None:
        add(cursor)
        begun.set()
        go_on.wait()

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(database.write, slow)
        begun.wait()
        taking = pool.submit(database.snapshot, moment.set)
        assert not moment.wait(0.1)
        go_on.set()
        writing.result()
        snapshot = taking.result()
    assert [(1,)] == snapshot.read("SELECT next FROM producer_ids")
    snapshot.close()


def test_failed_moment_lets_others_write_again(database: PostgresDatabase) -> None:
    def fails() -> None:
        raise StorageError("no")

    with pytest.raises(StorageError, match="no"):
        database.snapshot(fails)
    database.write(add)
    assert 1 == count(database)
