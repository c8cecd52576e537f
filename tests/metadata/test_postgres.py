"""The catalogue on a real PostgreSQL: killed in the middle of commits, copied into a file, changed by several at once.

The rest: tests/contract/test_catalogue.py.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from broker.errors import ConfigError, Fenced, StorageError
from broker.metadata.catalogue import Catalogue, RemoteFile, TopicRow
from broker.metadata.postgres import PostgresCatalogue
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.sqlite import SqliteCatalogue
from tests.durable.postgres import PostgresServer, SynchronousPair, fresh_schema, shared_server
from tests.durable.proxy import Proxy
from tests.metadata.test_copying import Contents
from tests.waiting import wait_for


@pytest.fixture
def address() -> Address:
    return Address.parse(shared_server().url, fresh_schema())


@pytest.fixture
def catalogue(address: Address) -> Iterator[PostgresCatalogue]:
    catalogue = PostgresCatalogue(address)
    yield catalogue
    catalogue.close()


class Committer(threading.Thread):
    """Numbers its commits, and knows the last one that was acknowledged. Each also adds 1 to the next producer id."""

    def __init__(self, catalogue: Catalogue, name: str) -> None:
        super().__init__(daemon=True)
        self.group = name
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self.stopping = False
        self._catalogue = catalogue

    def run(self) -> None:
        try:
            while not self.stopping:
                number = self.acknowledged + 1
                self._catalogue.together([partial(self._change, number)])
                self.acknowledged = number
        except BaseException as error:
            self.failure = error

    def _change(self, number: int, inside: Catalogue) -> None:
        inside.commit_offsets(self.group, [("t", partition, number, 0, "", 0) for partition in range(3)])
        inside.allocate_producer_ids(1)


@contextmanager
def committing(catalogue: PostgresCatalogue) -> Iterator[Callable[[int], None]]:
    """Four threads commit all the time. Gives a function that waits until each has committed so often. In the end nothing is
    lost, and nothing was made twice."""
    committers = [Committer(catalogue, f"g{number}") for number in range(4)]

    def go_on(times: int) -> None:
        before = [committer.acknowledged for committer in committers]
        wait_for(lambda: all(c.acknowledged >= b + times for c, b in zip(committers, before, strict=True)))

    for committer in committers:
        committer.start()
    try:
        yield go_on
    finally:
        for committer in committers:
            committer.stopping = True
        for committer in committers:
            committer.join()
    assert [None] * 4 == [committer.failure for committer in committers]
    acknowledged = {committer.group: committer.acknowledged for committer in committers}
    found = {(row.group, row.partition): row.offset for row in catalogue.load_offsets()}
    assert {(group, partition): n for group, n in acknowledged.items() for partition in range(3)} == found
    # Had one been made twice, its second time would count here, too.
    assert sum(acknowledged.values()) == catalogue.next_producer_id()


def test_nothing_is_lost_and_nothing_made_twice_when_the_server_is_killed() -> None:
    shared_server()  # skips
    server = PostgresServer(durable=True)
    address = Address.parse(server.url)
    catalogue = PostgresCatalogue(address, PostgresDatabase(address, retry_s=60))
    with committing(catalogue) as go_on:
        for _ in range(5):
            go_on(10)
            server.kill()
            server.start()
        go_on(1)
    catalogue.close()
    server.stop()


def test_nothing_is_lost_and_nothing_made_twice_when_a_synchronous_standby_takes_over() -> None:
    shared_server()  # skips
    pair = SynchronousPair()
    address = Address.parse(pair.url)
    catalogue = PostgresCatalogue(address, PostgresDatabase(address, retry_s=60))
    with committing(catalogue) as go_on:
        go_on(10)
        pair.primary.kill()
        pair.standby.promote()
        go_on(10)
    catalogue.close()
    pair.stop()


def test_standby_alone_is_refused() -> None:
    shared_server()  # skips
    primary = PostgresServer()
    standby = PostgresServer(primary=primary)
    with pytest.raises(ConfigError, match="is a replica or read-only: connect to the primary"):
        PostgresCatalogue(Address.parse(standby.url))
    standby.stop()
    primary.stop()


def test_several_changes_at_once_condemn_each_object_that_loses_its_last_file(address: Address) -> None:
    catalogues = [PostgresCatalogue(address) for _ in range(4)]
    for turn in range(20):
        catalogues[0].alter_remote_files([RemoteFile(f"{n}", f"o{turn}", 0, 1) for n in range(4)], [], 0)
        with ThreadPoolExecutor(4) as pool:
            pairs = enumerate(catalogues)
            for done in [pool.submit(one.alter_remote_files, [], [f"{n}"], 7) for n, one in pairs]:
                done.result()
        assert (f"o{turn}", 7) in catalogues[1].condemned_objects()
    for catalogue in catalogues:
        catalogue.close()


def test_producer_ids_are_given_out_once_to_many_threads(catalogue: PostgresCatalogue) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = [done.result() for done in [pool.submit(catalogue.allocate_producer_ids, 2) for _ in range(100)]]
    assert list(range(0, 200, 2)) == sorted(ids)


def test_offsets_committed_in_any_order_by_many_threads_do_not_deadlock(catalogue: PostgresCatalogue) -> None:
    log = shared_server().directory / "log"
    before = log.read_text().count("deadlock detected")
    partitions = [("t", number, 1, 0, "", 0) for number in range(50)]
    with ThreadPoolExecutor(4) as pool:
        orders = [partitions, partitions[::-1]] * 20
        for done in [pool.submit(catalogue.commit_offsets, "g", order) for order in orders]:
            done.result()
    assert 50 == len(list(catalogue.load_offsets()))
    assert before == log.read_text().count("deadlock detected")


def test_topics_are_sorted_like_sqlite_s(catalogue: PostgresCatalogue) -> None:
    names = ["a", "B", "a-b", "aB", "_", "é", "z", "\ue000", "\U0001f600"]
    for number, name in enumerate(names):
        catalogue.put_topic(TopicRow(name, uuid.UUID(int=number), 1))
    assert sorted(names) == [row.name for row in catalogue.topics()]


def test_fenced_catalogue_can_be_read_but_not_changed(catalogue: PostgresCatalogue) -> None:
    catalogue.set_meta("a", "1")
    with catalogue.database.connection("test") as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS owner (epoch bigint NOT NULL)")
        connection.execute("INSERT INTO owner (epoch) VALUES (2)")
    catalogue.database.epoch = 1
    for change in (
        lambda: catalogue.set_meta("a", "2"),
        lambda: catalogue.commit_offsets("g", [("t", 0, 1, 0, "", 0)]),
        lambda: catalogue.allocate_producer_ids(1),
        lambda: catalogue.together([lambda inside: inside.save_group("g", b"")]),
    ):
        with pytest.raises(Fenced):
            change()
    assert "1" == catalogue.meta("a")
    assert [] == list(catalogue.load_groups())


def test_copy_is_an_sqlite_file_as_of_the_moment(catalogue: PostgresCatalogue, tmp_path: Path) -> None:
    catalogue.put_topic(TopicRow("a", uuid.UUID(int=1), 1, {"x": "1"}))
    catalogue.commit_offsets("g\0", [("a", 0, 1, 0, None, 0)])
    catalogue.alter_documents([("k", "a\0", b"\0")])
    expected = Contents.of(catalogue)
    moments: list[int] = []
    save = catalogue.copy(lambda: moments.append(1))
    catalogue.put_topic(TopicRow("b", uuid.UUID(int=2), 1))
    catalogue.delete_topic("a")
    save(f"{tmp_path}/copy")
    assert ["copy"] == [path.name for path in tmp_path.iterdir()]  # no log beside it
    assert 0o600 == (tmp_path / "copy").stat().st_mode & 0o777
    copied = SqliteCatalogue(f"{tmp_path}/copy")
    assert (expected, [1]) == (Contents.of(copied), moments)
    copied.close()


def test_copy_that_waited_too_long_is_a_storage_error(
    catalogue: PostgresCatalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.metadata.postgres_database.SNAPSHOT_IDLE_S", 0.02)
    save = catalogue.copy(lambda: None)
    with shared_server().connect() as connection:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'broker-snapshot'"
        wait_for(lambda: connection.execute(sql).fetchall() == [(0,)])
    with pytest.raises(StorageError, match="could not be read"):
        save(f"{tmp_path}/copy")


def test_many_statements_of_a_change_need_few_exchanges_with_the_server() -> None:
    server = shared_server()
    proxy = Proxy(server.port)
    url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
    catalogue = PostgresCatalogue(Address.parse(url, fresh_schema()))
    before = proxy.answers
    catalogue.alter_documents([("k", str(number), b"") for number in range(300)])
    assert proxy.answers - before < 20
    catalogue.close()
    proxy.close()
