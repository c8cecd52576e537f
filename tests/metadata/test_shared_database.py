"""Several processes use one catalogue: their transactions do not mix, each hears what the others have changed, and one that
stands still holds nobody up for long. What the catalogue does by itself is in tests/contract.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.errors import StorageError, UnknownOutcome
from broker.metadata import database_server, shared_database
from broker.metadata.database_server import DatabaseServer
from broker.metadata.shared_database import SharedDatabase
from broker.metadata.shared_wire import decode, encode
from broker.metadata.sqlite_database import SqliteDatabase
from broker.runtime.channel import Channel, ChannelClosed, connect
from broker.runtime.clock import SystemClock


class Cluster:
    def __init__(self, directory: Path) -> None:
        self._database = SqliteDatabase(f"{directory}/catalogue.sqlite")
        self.stuck: list[int] = []
        self._path = f"{directory}/socket"
        self._channels: list[Channel] = []
        self.server = DatabaseServer(self._database, self._path, SystemClock(), self.stuck.append)
        self.server.start()
        self.one, self.other = self.user(), self.user()
        self.one.write(lambda statements: statements.execute("CREATE TABLE things (name TEXT, value BLOB)"))

    def user(self) -> SharedDatabase:
        return SharedDatabase(self.channel)

    def channel(self) -> Channel:
        self._channels.append(connect(self._path))
        return self._channels[-1]

    def watcher(self, node: int, *tables: str) -> Channel:
        """One that has been told where things stand."""
        channel = self.channel()
        channel.send(encode(["watch", node, {"endpoints": {}, "rack": None}, tables]))
        kind, version, changed = message(channel)
        assert ("changed", None) == (kind, changed)  # it has read the tables some time before
        channel.send(encode(["applied", version]))
        return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self.server.close()
        self._database.close()


def message(channel: Channel) -> list[Any]:
    """The next one that does not say which nodes there are."""
    while True:
        received = channel.receive(10)
        assert received is not None
        decoded = decode(received)
        if decoded[0] != "nodes":
            return decoded


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    running.close()


@contextmanager
def in_background(run: Callable[[], Any]) -> Iterator[None]:
    """``run`` on another thread, which has ended after the ``with``. What it raises is raised."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        yield
        running.result(60)


def put(database: SharedDatabase, name: str, value: bytes = b"") -> None:
    database.write(lambda statements: statements.execute("INSERT INTO things VALUES (?, ?)", (name, value)))


def names(database: SharedDatabase) -> list[str]:
    return [name for (name,) in database.read("SELECT name FROM things ORDER BY name")]


def test_what_one_process_writes_the_other_reads_bytes_included(cluster: Cluster) -> None:
    put(cluster.one, "a", bytes(range(256)))
    assert [("a", bytes(range(256)))] == cluster.other.read("SELECT name, value FROM things")


def test_a_transaction_that_fails_leaves_nothing(cluster: Cluster) -> None:
    def change(statements: Any) -> None:
        statements.execute("INSERT INTO things VALUES ('half', NULL)")
        assert [("half",)] == statements.execute("SELECT name FROM things").fetchall()
        raise ValueError("the other half")

    with pytest.raises(ValueError, match="the other half"):
        cluster.one.write(change)
    with pytest.raises(StorageError):
        cluster.one.write(lambda statements: statements.execute("INSERT INTO nowhere VALUES (1)"))
    put(cluster.other, "whole")
    assert ["whole"] == names(cluster.one)


def test_transactions_of_two_processes_take_turns(cluster: Cluster) -> None:
    def count(database: SharedDatabase) -> None:
        for _ in range(50):

            def change(statements: Any) -> None:
                [(found,)] = statements.execute("SELECT count(*) FROM things").fetchall()
                statements.execute("INSERT INTO things VALUES (?, NULL)", (f"{found:03}",))

            database.write(change)

    with in_background(lambda: count(cluster.one)):
        count(cluster.other)
    assert [f"{number:03}" for number in range(100)] == names(cluster.one)


def test_a_process_that_stops_in_a_transaction_is_cut_off_and_undone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_server, "PATIENCE_S", 0.05)
    stopped = cluster.channel()
    stopped.send(encode(["run", [["INSERT INTO things VALUES ('half', NULL)", [], "one"]], "go on"]))
    assert ["done", None] == message(stopped)
    put(cluster.other, "whole")
    assert ["whole"] == names(cluster.other)
    with pytest.raises(ChannelClosed):
        stopped.receive(10)


def test_a_process_that_goes_in_a_transaction_leaves_nothing(cluster: Cluster) -> None:
    gone = cluster.channel()
    gone.send(encode(["run", [["INSERT INTO things VALUES ('half', NULL)", [], "one"]], "go on"]))
    assert ["done", None] == message(gone)
    gone.close()
    put(cluster.other, "whole")
    assert ["whole"] == names(cluster.other)


def test_who_gets_no_answer_goes_on_and_what_was_sent_is_not_carried_out_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = cluster.channel()
    busy.send(encode(["run", [["INSERT INTO things VALUES ('busy', NULL)", [], "one"]], "go on"]))
    assert ["done", None] == message(busy)
    with monkeypatch.context() as impatient:
        impatient.setattr(shared_database, "ANSWER_S", 0.05)
        for _ in range(2):
            with pytest.raises(UnknownOutcome, match="has not answered"):
                put(cluster.one, "late")
    busy.send(encode(["run", [], "commit"]))
    assert ["done", None] == message(busy)
    put(cluster.one, "then")
    assert ["busy", "then"] == names(cluster.other)
    assert cluster.one.settle(60.0, 1)


def test_who_was_cut_off_in_a_transaction_goes_on_with_the_next(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_server, "PATIENCE_S", 0.05)

    def stand_still(statements: Any) -> None:
        statements.execute("INSERT INTO things VALUES ('half', NULL)")
        statements.execute("SELECT name FROM things").fetchall()
        put(cluster.other, "meanwhile")  # as soon as the first half is undone

    with pytest.raises(UnknownOutcome):
        cluster.one.write(stand_still)
    put(cluster.one, "whole")
    assert ["meanwhile", "whole"] == names(cluster.one)


@pytest.mark.parametrize("value", ["\ud800", 2**63])
def test_a_value_that_the_file_cannot_have_fails_its_transaction_only(cluster: Cluster, value: Any) -> None:
    with pytest.raises(StorageError, match="cannot have a value"):
        put(cluster.one, value)
    put(cluster.one, "a")
    assert ["a"] == names(cluster.one)


def test_watchers_hear_of_changes_to_the_tables_they_name_only(cluster: Cluster) -> None:
    cluster.one.write(lambda statements: statements.execute("CREATE TABLE others (name TEXT)"))
    watcher = cluster.watcher(2, "things")
    cluster.one.write(lambda statements: statements.execute("INSERT INTO others VALUES ('a')"))
    put(cluster.one, "a")
    kind, _, tables = message(watcher)
    assert ("changed", ["things"]) == (kind, tables)


def put_topic(database: SharedDatabase, name: str) -> None:
    database.write(lambda run: run.execute("INSERT INTO topics VALUES (?, ?, 1, '{}')", (name, name.encode())))


def test_topics_that_have_changed_since_are_named(cluster: Cluster) -> None:
    one, other = cluster.one, cluster.other
    before, _ = other.changed_topics(-1)
    put_topic(one, "a")
    put_topic(one, "b")
    now, names = other.changed_topics(before)
    assert ["a", "b"] == names
    one.write(lambda run: run.execute("DELETE FROM topics WHERE topic_id = ? AND name <> ?", (b"b", "c")))
    assert (now, []) == other.changed_topics(now)  # such a topic is put under its new name as well
    one.write(lambda run: run.execute("DELETE FROM topics WHERE name = ?", ("a",)))
    assert (now + 1, ["a"]) == other.changed_topics(now)


def test_who_has_missed_too_many_changes_reads_all_topics(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_server, "CHANGES_KEPT", 2)
    one = cluster.one
    before, _ = one.changed_topics(-1)
    for name in "abc":
        put_topic(one, name)
    assert one.changed_topics(before)[1] is None
    assert ["b", "c"] == one.changed_topics(before + 1)[1]


def test_watchers_are_told_of_topics_without_their_names(cluster: Cluster) -> None:
    watcher = cluster.watcher(1, "topics")
    put_topic(cluster.one, "a")
    assert ["topics"] == message(watcher)[2]


def test_settling_waits_until_every_other_watcher_has_the_change_in_force(cluster: Cluster) -> None:
    watcher = cluster.watcher(2, "things")
    own = cluster.watcher(1, "things")
    put(cluster.one, "a")
    settled: list[bool] = []
    with in_background(lambda: settled.append(cluster.one.settle(60.0, 1))):
        _, version, _ = message(watcher)
        assert [] == settled
        watcher.send(encode(["applied", version]))
    assert [True] == settled
    own.close()


def test_a_watcher_that_stands_still_is_named_and_not_waited_for_again(cluster: Cluster) -> None:
    cluster.watcher(2, "things")
    put(cluster.one, "a")
    assert not cluster.one.settle(0.01, 1)
    assert [2] == cluster.stuck
    put(cluster.one, "b")
    assert cluster.one.settle(60.0, 1)


def test_a_watcher_that_goes_is_not_waited_for(cluster: Cluster) -> None:
    watcher = cluster.watcher(2, "things")
    put(cluster.one, "a")
    settled: list[bool] = []
    with in_background(lambda: settled.append(cluster.one.settle(60.0, 1))):
        watcher.close()
    assert [True] == settled
    assert [] == cluster.stuck


@pytest.mark.parametrize("wrong", [b"", b"no JSON", b"{}", b"[]", b'["nothing"]', b'["run"]', b'["watch", 1]'])
def test_a_message_that_is_none_ends_its_channel_only(cluster: Cluster, wrong: bytes) -> None:
    channel = cluster.channel()
    channel.send(wrong)
    with pytest.raises(ChannelClosed):
        channel.receive(10)
    put(cluster.one, "a")
    assert ["a"] == names(cluster.other)


def test_without_the_process_that_has_the_file_writes_fail(cluster: Cluster) -> None:
    cluster.server.close()
    with pytest.raises(StorageError, match="is gone"):
        put(cluster.one, "a")
