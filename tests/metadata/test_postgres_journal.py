"""The journal on PostgreSQL when connections and servers fail. tests/contract/test_journal.py has what every journal does."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import pytest

from broker.errors import Fenced, StorageError, UnknownOutcome
from broker.metadata import postgres_journal
from broker.metadata.journal import JournalRow
from broker.metadata.postgres_journal import PostgresJournal
from tests.durable.journals import PostgresJournals
from tests.durable.postgres import PostgresServer, fresh_schema, shared_server
from tests.durable.proxy import Proxy
from tests.waiting import wait_for


class Setting:
    """A journal behind a proxy, and the test's own way to the server."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.proxy = Proxy(server.port)
        self.schema = fresh_schema()
        url = server.url.replace(f":{server.port}/", f":{self.proxy.port}/")
        self.owners = PostgresJournals(url, self.schema)
        self._pool = ThreadPoolExecutor(4)

    def journal(self, append_s: float = 20.0) -> PostgresJournal:
        return self.owners.next_owner(append_s)[1]

    def aside(self, work: Callable[[], None]) -> "Future[None]":
        return self._pool.submit(work)

    def numbers(self) -> list[int]:
        """What is in the table, whatever the journal says."""
        with self.server.connect() as own:
            found = own.execute(f"SELECT number FROM {self.schema}.journal ORDER BY ctid").fetchall()
        return [number for (number,) in found]  # type: ignore[misc]

    def journal_backends(self, condition: str = "true") -> list[int]:
        with self.server.connect() as own:
            found = own.execute(
                f"SELECT pid FROM pg_stat_activity WHERE application_name = 'broker-journal' AND {condition}"
            ).fetchall()
        return [pid for (pid,) in found]  # type: ignore[misc]

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self.owners.close()
        self.proxy.close()


@pytest.fixture
def setting() -> Iterator[Setting]:
    made = Setting(shared_server())
    yield made
    made.close()


@pytest.fixture
def own_setting() -> Iterator[Setting]:
    """With a server of its own, that may be killed."""
    if not PostgresServer.installed():
        pytest.skip("PostgreSQL is not installed")
    server = PostgresServer()
    made = Setting(server)
    yield made
    made.close()
    server.stop()


def row(number: int, data: bytes = b"data") -> JournalRow:
    return JournalRow(number, b"index", data, None)


def test_a_connection_that_was_lost_between_two_appends_is_made_again(setting: Setting) -> None:
    journal = setting.journal()
    journal.append([row(1)])
    setting.proxy.cut()
    journal.append([row(2)])
    assert [1, 2] == setting.numbers()


def test_a_row_whose_answer_is_lost_is_stored_once(setting: Setting) -> None:
    journal = setting.journal()
    journal.append([row(1)])
    setting.proxy.mute = True
    appending = setting.aside(lambda: journal.append([row(2)]))
    wait_for(lambda: setting.numbers() == [1, 2])
    assert not appending.done()
    setting.proxy.mute = False
    setting.proxy.cut()
    appending.result(30)
    journal.append([row(3)])
    assert [1, 2, 3] == setting.numbers()


def test_a_row_that_does_not_reach_the_server_is_sent_again(setting: Setting) -> None:
    journal = setting.journal()
    journal.append([row(1)])
    setting.proxy.deaf = True
    appending = setting.aside(lambda: journal.append([row(2), row(3)]))
    wait_for(lambda: setting.proxy.kept)
    assert [1] == setting.numbers()
    setting.proxy.deaf = False
    setting.proxy.cut()
    appending.result(30)
    assert [1, 2, 3] == setting.numbers()


def test_a_server_that_does_not_answer_is_given_up_in_time(setting: Setting) -> None:
    journal = setting.journal(append_s=0.1)
    journal.append([row(1)])
    setting.proxy.mute = True
    assert journal._connection is not None
    journal._connection.answer_s = 0.5  # of this connection: the ones before and after it have a busy machine's time
    with pytest.raises(UnknownOutcome, match=r"Rows 2 to 2 .* may be stored: the server did not answer within 0\.5 s"):
        journal.append([row(2)])
    setting.proxy.mute = False
    journal.append([row(2)])
    assert [1, 2] == setting.numbers()


def test_an_append_whose_session_still_waits_in_the_server_is_stored_once(setting: Setting) -> None:
    journal = setting.journal()
    journal.append([row(1)])
    with setting.server.connect() as other:
        other.execute("BEGIN")
        other.execute(f"SELECT 1 FROM {setting.schema}.owner FOR UPDATE")
        appending = setting.aside(lambda: journal.append([row(2)]))
        waits = "wait_event_type = 'Lock'"  # those of earlier tests may still end
        wait_for(lambda: setting.journal_backends(waits))
        (before,) = setting.journal_backends(waits)
        setting.proxy.cut(server_too=False)  # the session in the server knows nothing of it
        wait_for(lambda: setting.journal_backends(f"{waits} AND pid <> {before}"))
        other.execute("COMMIT")
    appending.result(30)
    assert [1, 2] == setting.numbers()
    journal.append([row(3)])
    assert [1, 2, 3] == setting.numbers()


def test_rows_are_surely_not_stored_if_the_server_was_never_reached(setting: Setting) -> None:
    journal = setting.journal(append_s=0.5)
    setting.proxy.refusing = True
    with pytest.raises(StorageError, match="The journal could not be written") as caught:
        journal.append([row(1)])
    assert not isinstance(caught.value, UnknownOutcome)
    assert "p%w/d" not in str(caught.value)
    setting.proxy.refusing = False
    journal.append([row(1, b"other")])
    assert [row(1, b"other")] == list(journal.read(0))


def test_rows_that_may_be_stored_are_appended_again_before_others(setting: Setting) -> None:
    journal = setting.journal(append_s=0.5)
    journal.append([row(1)])
    setting.proxy.mute = True
    appending = setting.aside(lambda: journal.append([row(2)]))
    wait_for(lambda: setting.numbers() == [1, 2])
    setting.proxy.refusing, setting.proxy.mute = True, False
    setting.proxy.cut()
    with pytest.raises(UnknownOutcome):
        appending.result(30)
    with pytest.raises(UnknownOutcome):
        journal.append([row(2)])
    with pytest.raises(AssertionError, match="other rows"):
        journal.append([row(2, b"other")])
    setting.proxy.refusing = False
    journal.append([row(2)])
    journal.append([row(3)])
    assert [1, 2, 3] == setting.numbers()


def test_an_owner_that_was_replaced_while_an_outcome_was_unknown_is_fenced(setting: Setting) -> None:
    fenced: list[str] = []
    journal = setting.journal()
    journal._on_fenced = fenced.append
    journal.append([row(1)])
    setting.proxy.deaf = True
    appending = setting.aside(lambda: journal.append([row(2)]))
    wait_for(lambda: setting.proxy.kept)
    setting.proxy.deaf = False
    following = PostgresJournals(setting.server.url, setting.schema)
    try:
        following.take_over().append([row(2, b"of the next")])
    finally:
        following.close()
    setting.proxy.cut()
    with pytest.raises(Fenced, match="epoch 1 is over"):
        appending.result(30)
    assert 1 == len(fenced)
    with setting.server.connect() as own:
        found = own.execute(f"SELECT epoch, data FROM {setting.schema}.journal ORDER BY number").fetchall()
    assert [(1, b"data"), (2, b"of the next")] == found


def test_an_owner_that_finds_rows_lost_is_fenced(setting: Setting) -> None:
    journal = setting.journal()
    for number in (1, 2, 3):
        journal.append([row(number)])
    with setting.server.connect() as own:  # as if a replica that had not received them had taken the server's place
        own.execute(f"DELETE FROM {setting.schema}.journal WHERE number > 1")
        own.execute(f"UPDATE {setting.schema}.owner SET number = 1")
    with pytest.raises(Fenced, match=r"has lost rows .* 2 to 3"):
        journal.append([row(4)])


def test_an_append_renews_the_lease_from_when_it_was_sent(setting: Setting) -> None:
    renewed: list[tuple[float, int]] = []
    journal = setting.journal()
    journal._on_renewed = lambda sent_at, number: renewed.append((sent_at, number))
    with setting.server.connect() as own:
        own.execute(f"UPDATE {setting.schema}.owner SET lease_until = 'epoch'")
        before = journal._clock.monotonic()
        journal.append([row(1)])
        journal.append([row(2), row(3)])
        ((left_s,),) = own.execute(
            f"SELECT extract(epoch FROM lease_until - clock_timestamp())::float8 FROM {setting.schema}.owner"
        ).fetchall()
    assert [1, 3] == [number for _, number in renewed]
    assert before <= renewed[0][0] <= renewed[1][0] <= journal._clock.monotonic()
    assert 0 < left_s <= 10  # type: ignore[operator]


def test_no_acknowledged_row_is_lost_or_doubled_when_the_server_is_killed(own_setting: Setting) -> None:
    journal = own_setting.journal(append_s=60.0)
    ended = threading.Event()
    acknowledged: list[int] = []

    def append_all() -> None:
        number = 1
        while not ended.is_set():
            journal.append([row(number)])
            acknowledged.append(number)
            number += 1

    appending = own_setting.aside(append_all)
    for _ in range(6):
        before = len(acknowledged)
        wait_for(lambda before=before: len(acknowledged) > before + 50 or appending.done())  # type: ignore[misc]
        own_setting.server.kill()
        own_setting.server.start()
    ended.set()
    appending.result(60)
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    assert acknowledged == [stored.number for stored in journal.read(0)]


def test_a_commit_that_did_not_wait_for_its_replica_is_not_acknowledged(
    own_setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_journal, "_ANSWER_S", 60.0)  # the test ends each wait for the replica, and nobody else
    journal = own_setting.journal(append_s=60.0)
    acknowledged: list[int] = []
    ended = threading.Event()

    def append_all() -> None:
        while not ended.is_set():
            number = len(acknowledged) + 1
            journal.append([row(number)])
            acknowledged.append(number)

    with own_setting.server.connect() as own:
        own.execute("SET synchronous_commit = local")
        appending = own_setting.aside(append_all)
        own.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        own.execute("SELECT pg_reload_conf()")
        waits = "wait_event = 'SyncRep'"
        wait_for(lambda: own_setting.journal_backends(waits))
        before = len(acknowledged)
        for _ in range(3):  # each attempt waits for the replica; the first one leaves the row behind
            wait_for(lambda: own_setting.journal_backends(waits))
            (pid,) = own_setting.journal_backends(waits)
            own.execute("SELECT pg_cancel_backend(%s)", (pid,))
            wait_for(lambda pid=pid: pid not in own_setting.journal_backends())  # type: ignore[misc]
        assert (before, before + 1) == (len(acknowledged), len(own_setting.numbers()))
        own.execute("ALTER SYSTEM RESET synchronous_standby_names")
        own.execute("SELECT pg_reload_conf()")
        ended.set()
        appending.result(30)
    assert before + 1 == len(acknowledged)
    assert acknowledged == [stored.number for stored in journal.read(0)]


def test_a_reader_goes_on_after_its_connection_was_lost(setting: Setting) -> None:
    journal = setting.journal()
    journal.append([row(number) for number in range(1, 301)])
    reading = journal.read(0)
    first = [each.number for each in islice(reading, 10)]
    setting.proxy.cut()
    assert list(range(1, 301)) == first + [each.number for each in reading]


def test_a_reader_that_cannot_go_on_says_so(setting: Setting) -> None:
    journal = setting.journal(append_s=0.3)
    journal.append([row(number) for number in range(1, 301)])
    reading = journal.read(0)
    next(reading)
    setting.proxy.refusing = True
    setting.proxy.cut()
    with pytest.raises(StorageError, match="The journal could not be read"):
        list(reading)


def test_many_rows_are_removed_in_several_transactions(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_journal, "_REMOVED_ROWS", 100)
    journal = setting.journal()
    journal.append([row(number) for number in range(1, 501)])
    journal.remove(350)
    assert list(range(351, 501)) == setting.numbers()


def test_a_dump_that_reads_the_table_holds_up_no_owner(setting: Setting) -> None:
    setting.journal().append([row(1)])
    with setting.server.connect() as dump:
        dump.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        dump.execute(f"LOCK TABLE {setting.schema}.journal, {setting.schema}.owner IN ACCESS SHARE MODE")
        following = setting.journal()
        following.append([row(2)])
        following.remove(1)
        dump.execute("COMMIT")
    assert [row(2)] == list(following.read(0))


def test_bytes_are_not_compressed_and_removed_rows_are_vacuumed_early(setting: Setting) -> None:
    setting.journal()
    with setting.server.connect() as own:
        storages = own.execute(
            "SELECT attname, attstorage FROM pg_attribute WHERE attrelid = %s::regclass AND attname IN ('data', 'index')",
            (f"{setting.schema}.journal",),
        ).fetchall()
        ((options,),) = own.execute(
            "SELECT reloptions FROM pg_class WHERE oid = %s::regclass", (f"{setting.schema}.journal",)
        ).fetchall()
    assert {("index", "e"), ("data", "e")} == {(str(name), str(storage)) for name, storage in storages}
    assert re.search("autovacuum_vacuum_threshold=2000", str(options))
