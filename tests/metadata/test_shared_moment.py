"""All nodes stand still together, and the catalogue with them; or there is no backup."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.metadata.shared_wire import decode, encode
from broker.metadata.sqlite_database import SqliteDatabase
from broker.runtime.channel import Channel
from tests.metadata.test_shared_database import Cluster, message


class Moment:
    """Nodes 1 and 2 of a cluster, which take part by hand."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory)
        self.path = str(directory / "copy.sqlite")
        self.watchers = {node: self.cluster.watcher(node) for node in (1, 2)}
        self.parts: dict[int, Channel] = {}
        self.asked = self.ask("first")

    def ask(self, backup_id: str, count: int = 2) -> Channel:
        asked = self.cluster.channel()
        asked.send(encode(["backup", backup_id, "/directory", self.path, count]))
        return asked

    def join(self, node: int, backup_id: str = "first") -> None:
        assert ["backup", backup_id, "/directory"] == message(self.watchers[node])
        self.parts[node] = self.cluster.channel()
        self.parts[node].send(encode(["pin", backup_id, node]))

    def say(self, kind: str, *values: object) -> None:
        """All that take part."""
        for channel in self.parts.values():
            channel.send(encode([kind, *values]))

    def hear(self) -> list[list[Any]]:
        return [message(channel) for channel in self.parts.values()]


@pytest.fixture
def moment(tmp_path: Path) -> Iterator[Moment]:
    running = Moment(tmp_path)
    yield running
    running.cluster.close()


def things(path: str) -> list[str]:
    database = SqliteDatabase(path)
    found = [name for (name,) in database.read("SELECT name FROM things ORDER BY name")]
    database.close()
    return found


def add(moment: Moment, name: str) -> None:
    moment.cluster.one.write(lambda statements: statements.execute("INSERT INTO things VALUES (?, NULL)", (name,)))


def test_nobody_goes_on_before_all_stand_still(moment: Moment) -> None:
    add(moment, "before")
    moment.join(1)
    moment.join(2)
    assert [["take"], ["take"]] == moment.hear()
    moment.parts[1].send(encode(["taken"]))
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(add, moment, "after")
        assert moment.parts[1].receive(0.3) is None
        assert not writing.done()
        moment.parts[2].send(encode(["taken"]))
        assert [["release"], ["release"]] == moment.hear()
        assert not writing.done()
        moment.say("released", True)
        assert ["done", None] == message(moment.asked)
        writing.result(60)
    assert [["stage"], ["stage"]] == moment.hear()
    moment.say("staged", None)
    assert ["done", None] == message(moment.asked)
    assert ["before"] == things(moment.path)


def test_a_node_that_went_on_early_is_asked_again(moment: Moment) -> None:
    moment.join(1)
    moment.join(2)
    for held in (False, True):
        assert [["take"], ["take"]] == moment.hear()
        moment.say("taken")
        assert [["release"], ["release"]] == moment.hear()
        moment.parts[1].send(encode(["released", held]))
        moment.parts[2].send(encode(["released", True]))
    assert ["done", None] == message(moment.asked)


def test_a_node_that_never_holds_for_long_enough_fails_it(moment: Moment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.metadata.shared_moment._PAUSE_S", 0.0)
    moment.join(1)
    moment.join(2)
    for _ in range(10):
        assert [["take"], ["take"]] == moment.hear()
        moment.say("taken")
        assert [["release"], ["release"]] == moment.hear()
        moment.say("released", False)
    assert "too busy to stand still" in message(moment.asked)[2]


def test_a_node_that_ends_fails_it_at_each_point(moment: Moment) -> None:
    for point in ("before", "take", "release", "stage"):
        if point != "before":
            moment.watchers[2] = moment.cluster.watcher(2)
            moment.asked = moment.ask(point)
        moment.join(1, "first" if point == "before" else point)
        if point == "before":
            moment.watchers[2].close()
        else:
            moment.join(2, point)
            moment.hear()
            if point in ("release", "stage"):
                moment.say("taken")
                moment.hear()
            if point == "stage":
                moment.say("released", True)
                assert ["done", None] == message(moment.asked)
                moment.hear()
            moment.parts[2].close()
            moment.parts[1].send(
                encode({"take": ["taken"], "release": ["released", True]}.get(point, ["staged", None]))
            )
        kind, _, reason = message(moment.asked)
        assert ("failed", "Node 2 has ended while the backup was made: run the command again") == (kind, reason), point
        assert decode_or_none(moment.parts[1]) in (None, ["release"], ["take"]), "it goes on without node 2"
        moment.parts.clear()
    add(moment, "the catalogue is not held")


def decode_or_none(channel: Channel) -> list[Any] | None:
    """What is still sent; None at the end."""
    from broker.runtime.channel import ChannelClosed

    try:
        received = channel.receive(10)
    except ChannelClosed:
        return None
    assert received is not None
    return decode(received)


def test_files_that_could_not_be_pinned_fail_it(moment: Moment) -> None:
    moment.join(1)
    moment.join(2)
    moment.hear()
    moment.say("taken")
    moment.hear()
    moment.say("released", True)
    assert ["done", None] == message(moment.asked)
    moment.hear()
    moment.parts[1].send(encode(["staged", None]))
    moment.parts[2].send(encode(["staged", "no room"]))
    assert ["failed", "storage", "The files of node 2 could not be pinned: no room"] == message(moment.asked)


def test_only_one_is_made_at_a_time_and_by_all(moment: Moment) -> None:
    moment.join(1)
    assert "Another backup is being made" in message(moment.ask("second"))[2]
    moment.watchers[2].close()
    assert "has ended" in message(moment.asked)[2]
    assert "Of 2 nodes 1 are there" in message(moment.ask("third"))[2]
