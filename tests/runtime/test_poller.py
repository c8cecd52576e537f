"""Readiness, and a wake-up that is never lost."""

import collections
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.runtime import poller as poller_module
from broker.runtime.poller import READ, WRITE, SelectorPoller
from tests.network.harness import descriptors
from tests.waiting import wait_for


class Descriptor(NamedTuple):
    number: int

    def fileno(self) -> int:
        return self.number


@pytest.fixture
def poller() -> Iterator[SelectorPoller]:
    made = SelectorPoller()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    a.setblocking(False)
    with a, b:
        yield a, b


def seen(poller: SelectorPoller, timeout: float | None = 0) -> dict[object, int]:
    poller.arm()
    return {key.data: events for key, events in poller.poll(timeout)}


def test_importing_selectors2_leaves_collections_as_it_was() -> None:
    assert not hasattr(collections, "Mapping")
    assert poller_module._selectors2.__name__ == "selectors2"


def test_only_what_was_asked_for_is_reported(poller: SelectorPoller, pair: tuple[socket.socket, socket.socket]) -> None:
    a, b = pair
    poller.register(a, READ, "a")
    assert seen(poller) == {}
    b.send(b"x")
    assert seen(poller) == {"a": READ}
    assert seen(poller) == {"a": READ}  # level-triggered
    poller.modify(a, READ | WRITE, "a")
    assert seen(poller) == {"a": READ | WRITE}
    poller.modify(a, WRITE, "a")
    assert seen(poller) == {"a": WRITE}
    poller.unregister(a)
    assert seen(poller) == {}
    poller.register(a, READ, "again")
    assert seen(poller) == {"again": READ}


def test_peer_that_left_shows_only_in_requested_events(
    poller: SelectorPoller, pair: tuple[socket.socket, socket.socket]
) -> None:
    a, b = pair
    poller.register(a, WRITE, "a")
    b.close()
    assert seen(poller) == {"a": WRITE}
    poller.modify(a, READ, "a")
    assert seen(poller) == {"a": READ}


def test_many_are_reported_at_once(poller: SelectorPoller) -> None:
    pairs = [socket.socketpair() for _ in range(50)]
    for n, (a, b) in enumerate(pairs):
        poller.register(a, READ, n + 1)
        b.send(b"x")
    poller.wakeup()
    assert seen(poller) == {n + 1: READ for n in range(50)}
    for a, b in pairs:
        poller.unregister(a)
        a.close()
        b.close()


def test_events_unreported_by_one_wait_come_with_next(poller: SelectorPoller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller_module, "_EVENTS_MAX", 4)
    pairs = [socket.socketpair() for _ in range(10)]
    for n, (a, b) in enumerate(pairs):
        poller.register(a, READ, n)
        b.send(b"x")
    found: dict[object, int] = {}
    for _ in range(3):  # all are readable all the time, and none is left out
        found |= seen(poller)
    assert found == dict.fromkeys(range(10), READ)
    for a, b in pairs:
        poller.unregister(a)
        a.close()
        b.close()


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="other systems take files")
def test_what_the_system_refuses_is_not_registered(poller: SelectorPoller, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:  # epoll takes none
        number = file.fileno()
        with pytest.raises(PermissionError):
            poller.register(file, READ, "file")
    reader, writer = os.pipe()  # one of them has that number now
    try:
        assert number in (reader, writer)
        poller.register(Descriptor(number), READ | WRITE, "pipe")
    finally:
        poller.unregister(Descriptor(number))
        os.close(reader)
        os.close(writer)


def test_wakeup_ends_wait_and_is_not_reported(poller: SelectorPoller) -> None:
    poller.arm()
    poller.wakeup()
    assert list(poller.poll(20)) == []
    assert list(poller.poll(0)) == []


def test_a_wakeup_before_the_wait_is_not_lost(poller: SelectorPoller) -> None:
    poller.wakeup()
    poller.arm()
    assert list(poller.poll(None)) == []


def test_many_wakeups_ring_once(poller: SelectorPoller) -> None:
    poller.arm()
    for _ in range(1000):
        poller.wakeup()
    assert list(poller.poll(None)) == []
    assert poller._selector.select(0) == []  # it is silent again: the next wait is a real one


def test_wakeup_without_waiter_costs_no_descriptor_write(
    poller: SelectorPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings: list[int] = []
    monkeypatch.setattr(poller._alarm, "ring", lambda: rings.append(1))
    poller.wakeup()
    poller.wakeup()
    assert rings == []
    poller.arm()
    poller.wakeup()
    poller.wakeup()
    assert rings == [1]


def test_work_stored_before_wakeup_is_always_seen(poller: SelectorPoller) -> None:
    # The use that processors make of it: look at the queue, arm, look again, wait without end.
    inbox: collections.deque[int] = collections.deque()
    got: list[int] = []
    total, producers = 3000, 3

    def consume() -> None:
        while len(got) < total * producers:
            while inbox:
                got.append(inbox.popleft())
            poller.arm()
            poller.poll(0.0 if inbox or len(got) >= total * producers else None)

    def produce() -> None:
        for n in range(total):
            inbox.append(n)
            poller.wakeup()

    consumer = threading.Thread(target=consume, daemon=True)
    threads = [threading.Thread(target=produce) for _ in range(producers)]
    consumer.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: len(got) == total * producers, "something lies in the queue and nobody was woken")
    consumer.join(20)
    assert not consumer.is_alive()


def test_closing_returns_descriptors_once_despite_a_late_wakeup() -> None:
    before = descriptors()
    poller = SelectorPoller()
    poller.arm()
    poller.close()
    assert descriptors() == before
    pipes = [os.pipe() for _ in range(4)]  # take the numbers that were given back
    for read_end, _ in pipes:
        os.set_blocking(read_end, False)
    poller.wakeup()
    poller.close()
    for read_end, write_end in pipes:
        with pytest.raises(BlockingIOError):
            os.read(read_end, 100)
        os.close(read_end)
        os.close(write_end)


def test_without_eventfd_a_pipe_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    before = descriptors()
    poller = SelectorPoller()
    for _ in range(3):
        poller.arm()
        poller.wakeup()
        assert list(poller.poll(None)) == []
    poller.close()
    assert descriptors() == before
