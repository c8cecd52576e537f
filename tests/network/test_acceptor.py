"""The acceptor over stub listeners and processors: who gets the next connection, and when none is taken."""

from collections import deque
from typing import Any

import pytest

from broker.network import acceptor as acceptor_module
from broker.network.acceptor import Acceptor, Endpoint
from broker.network.new_connection import NewConnection
from broker.network.quota import ConnectionQuotas, ListenerLimits
from broker.runtime import system_runtime
from broker.runtime.net import Exhausted
from broker.runtime.poller import SelectorPoller
from tests.clocks import ManualClock
from tests.waiting import wait_for

HERE = ("127.0.0.1", 9092)


class StubSocket:
    def __init__(self, name: object) -> None:
        self.name = name
        self.closed = False

    def close(self) -> None:
        self.closed = True


class StubListener:
    """Connections as the test queues them; an exception in the queue is raised."""

    address = HERE

    def __init__(self) -> None:
        self.backlog: deque[Any] = deque()
        self.accepts = 0
        self.closed = False

    def come(self, *hosts: str) -> list[StubSocket]:
        sockets = [StubSocket(host) for host in hosts]
        self.backlog.extend(sockets)
        return sockets

    def accept(self) -> Any:
        self.accepts += 1
        if not self.backlog:
            return None
        head = self.backlog.popleft()
        if isinstance(head, Exception):
            raise head
        return head, (head.name, 5), HERE

    def fileno(self) -> int:
        raise AssertionError("only the stub poller looks")

    def close(self) -> None:
        self.closed = True


class StubPoller:
    """Ready is every registered listener with a backlog."""

    def __init__(self) -> None:
        self.registered: dict[Any, Any] = {}
        self.timeouts: list[float | None] = []
        self.rung = 0

    def register(self, source: Any, events: int, data: Any) -> None:
        assert source not in self.registered
        self.registered[source] = data

    def unregister(self, source: Any) -> None:
        del self.registered[source]

    def arm(self) -> None: ...

    def poll(self, timeout: float | None) -> list[Any]:
        self.timeouts.append(timeout)

        class Key:
            def __init__(self, data: Any) -> None:
                self.data = data

        return [(Key(data), 1) for source, data in self.registered.items() if source.backlog]

    def wakeup(self) -> None:
        self.rung += 1

    def close(self) -> None: ...


class StubProcessor:
    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.offers = 0
        self.taken: list[Any] = []

    def offer(self, new: NewConnection) -> bool:
        self.offers += 1
        if len(self.taken) >= self.room:
            return False
        self.taken.append(new.socket)
        return True


class Setting:
    def __init__(self, *processors: StubProcessor, quotas: ConnectionQuotas | None = None, listeners: int = 1) -> None:
        self.listeners = [StubListener() for _ in range(listeners)]
        self.listener = self.listeners[0]
        self.poller: Any = StubPoller()
        self.clock = ManualClock()
        self.quotas = quotas or ConnectionQuotas(1000, 1000, {}, 0)
        self.processors = processors
        service: Any = None
        endpoints = [Endpoint(f"l{n}", listener, service, 100) for n, listener in enumerate(self.listeners)]
        self.acceptor = Acceptor(endpoints, self.quotas, self.poller, self.clock)
        self.acceptor.deal_to(processors)  # type: ignore[arg-type]

    @property
    def listening(self) -> bool:
        return bool(self.poller.registered)


def test_connections_are_dealt_round_robin() -> None:
    setting = Setting(StubProcessor(), StubProcessor(), StubProcessor())
    sockets = setting.listener.come(*"abcdefg")
    assert setting.acceptor.step(0)
    dealt = [processor.taken for processor in setting.processors]
    assert sorted(len(taken) for taken in dealt) == [2, 2, 3]
    for start in range(5):  # any three in a row are with three different processors
        owners = {n for n, taken in enumerate(dealt) for s in sockets[start : start + 3] if s in taken}
        assert len(owners) == 3
    assert setting.quotas.total == 7


def test_a_full_processor_is_passed_over() -> None:
    setting = Setting(StubProcessor(), StubProcessor(0), StubProcessor())
    setting.listener.come(*"abcdef")
    setting.acceptor.step(0)
    assert [len(processor.taken) for processor in setting.processors] == [3, 0, 3]


def test_full_processors_are_tried_once_and_block_accepting() -> None:
    setting = Setting(StubProcessor(0), StubProcessor(0))
    first, _second, _ = setting.listener.come("a", "b", "c")
    setting.acceptor.step(0)
    assert [processor.offers for processor in setting.processors] == [1, 1]
    assert len(setting.listener.backlog) == 2
    setting.acceptor.step(None)
    assert not setting.listening
    assert [processor.offers for processor in setting.processors] == [2, 2]
    assert setting.poller.timeouts[-1] is not None
    assert len(setting.listener.backlog) == 2
    assert not first.closed
    setting.processors[0].room = 1
    setting.acceptor.step(0)
    assert setting.processors[0].taken == [first]  # the one that waited comes first
    assert setting.listening
    assert setting.processors[1].taken == []


def test_held_connection_goes_to_new_processor() -> None:
    setting = Setting(StubProcessor(0))
    (socket,) = setting.listener.come("a")
    setting.acceptor.step(0)
    extra = StubProcessor()
    rung = setting.poller.rung
    setting.acceptor.deal_to([*setting.processors, extra])  # type: ignore[list-item]
    assert setting.poller.rung == rung + 1
    setting.acceptor.step(0)
    assert extra.taken == [socket]


def test_acceptor_rests_without_descriptors_and_then_continues() -> None:
    setting = Setting(StubProcessor())
    setting.listener.backlog.append(Exhausted("too many open files"))
    setting.listener.come("a")
    setting.acceptor.step(0)
    accepts = setting.listener.accepts
    for _ in range(5):  # however often it is woken meanwhile
        setting.acceptor.step(None)
    assert setting.listener.accepts == accepts
    assert not setting.listening
    assert setting.poller.timeouts[-1] is not None
    assert setting.poller.timeouts[-1] <= 0.2
    setting.clock.now += 1
    setting.acceptor.step(0)
    assert len(setting.processors[0].taken) == 1


def test_missing_descriptors_do_not_use_up_connection_allowance() -> None:
    setting = Setting(StubProcessor(), quotas=ConnectionQuotas(100, 100, {}, 1))
    setting.listener.backlog.append(Exhausted("too many open files"))
    setting.listener.come("a")
    setting.acceptor.step(0)
    setting.clock.now += 0.2
    setting.acceptor.step(0)
    assert len(setting.processors[0].taken) == 1


def test_backlog_waits_at_max_connections_until_close() -> None:
    setting = Setting(StubProcessor(), quotas=ConnectionQuotas(2, 100, {}, 0))
    setting.listener.come("a", "b", "c", "d")
    setting.acceptor.step(0)
    setting.acceptor.step(None)
    assert len(setting.processors[0].taken) == 2
    assert len(setting.listener.backlog) == 2
    assert not setting.listening
    assert setting.poller.timeouts[-1] is not None
    setting.quotas.close("a", "l0")
    setting.acceptor.step(0)
    assert len(setting.processors[0].taken) == 3
    assert len(setting.listener.backlog) == 1


def test_address_with_too_many_is_closed_next_served() -> None:
    setting = Setting(StubProcessor(), quotas=ConnectionQuotas(100, 1, {"c": 2}, 0))
    sockets = setting.listener.come("a", "a", "b", "c", "c", "c")
    setting.acceptor.step(0)
    assert [socket.closed for socket in sockets] == [False, True, False, False, False, True]
    assert setting.acceptor.refused == 2
    assert setting.acceptor.accepted == 4
    assert setting.quotas.total == 4


def test_new_connections_come_no_faster_than_their_rate() -> None:
    setting = Setting(StubProcessor(), quotas=ConnectionQuotas(100, 100, {}, 5))
    setting.listener.come(*"abcdefghijklmnop")
    setting.acceptor.step(0)
    assert len(setting.processors[0].taken) == 5
    setting.acceptor.step(0)
    assert len(setting.processors[0].taken) == 5
    assert not setting.listening
    for _ in range(10):
        setting.clock.now += 0.1
        setting.acceptor.step(0)
    assert len(setting.processors[0].taken) == 10


def test_empty_backlog_does_not_use_up_the_rate() -> None:
    setting = Setting(StubProcessor(), quotas=ConnectionQuotas(100, 100, {}, 2))
    setting.listener.come("a")
    setting.acceptor.step(0)  # takes one and finds no second
    setting.listener.come("b")
    setting.acceptor.step(0)
    assert len(setting.processors[0].taken) == 2


def test_long_backlog_of_listener_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor_module, "_TURN", 4)
    setting = Setting(StubProcessor(), listeners=2)
    setting.listeners[0].come(*["a"] * 100)
    (other,) = setting.listeners[1].come("b")
    setting.acceptor.step(0)
    assert other in setting.processors[0].taken
    assert len(setting.processors[0].taken) == 5


def test_listener_at_its_own_limit_waits_alone() -> None:
    setting = Setting(StubProcessor(), listeners=3)
    limits = {"l0": ListenerLimits(max_connections=1), "l1": ListenerLimits(max_per_second=2.0)}
    setting.quotas.configure(100, 100, {}, 0, limits)
    for listener in setting.listeners:
        listener.come(*"abcd")
    setting.acceptor.step(0)
    setting.acceptor.step(0)
    assert [len(listener.backlog) for listener in setting.listeners] == [3, 2, 0]
    assert list(setting.poller.registered) == setting.listeners[2:]
    setting.clock.now += 0.5
    setting.quotas.close("a", "l0")
    setting.acceptor.step(0)
    assert [len(listener.backlog) for listener in setting.listeners] == [2, 1, 0]


def test_fast_connecting_address_is_held_then_closed() -> None:
    setting = Setting(StubProcessor())
    setting.quotas.connection_rate = {"a": 2.0}.get
    sockets = setting.listener.come("a", "b", "a", "a", "b")
    setting.acceptor.step(0)
    assert setting.processors[0].taken == [sockets[n] for n in (0, 1, 2, 4)]
    assert (setting.acceptor.throttled, sockets[3].closed, setting.quotas.total) == (1, False, 4)
    setting.acceptor.step(None)
    assert setting.poller.timeouts[-1] is not None
    setting.clock.now += 0.4
    setting.acceptor.step(0)
    assert not sockets[3].closed
    setting.clock.now += 0.2
    setting.acceptor.step(0)
    assert (setting.acceptor.throttled, sockets[3].closed) == (0, True)
    assert dict(setting.quotas.throttled) == {"l0": 1}
    (again,) = setting.listener.come("a")
    setting.acceptor.step(0)
    assert again in setting.processors[0].taken


def test_throttled_connections_are_bounded_and_end_with_acceptor() -> None:
    setting = Setting(StubProcessor(), quotas=ConnectionQuotas(50, 50, {}, 3))
    setting.quotas.connection_rate = {"a": 1.0}.get
    sockets = setting.listener.come(*"a" * 20, "b", "b")
    setting.acceptor.step(0)
    assert setting.acceptor.throttled == 5  # a tenth of the connections
    assert sum(socket.closed for socket in sockets) == 14
    assert setting.quotas.total == 3
    setting.acceptor.close()
    assert sum(socket.closed for socket in sockets) == 19


def test_protected_listener_accepts_while_broker_is_full() -> None:
    setting = Setting(StubProcessor(), quotas=ConnectionQuotas(1, 100, {}, 0), listeners=2)
    setting.quotas.protect("l1", 1)
    for listener in setting.listeners:
        listener.come("a", "b")
    setting.acceptor.step(0)
    setting.acceptor.step(0)
    assert [len(listener.backlog) for listener in setting.listeners] == [1, 1]
    assert setting.quotas.excess == 1


def test_closing_stops_listening_and_releases_held_connection() -> None:
    setting = Setting(StubProcessor(0), listeners=2)
    (held,) = setting.listener.come("a")
    setting.acceptor.step(0)
    setting.acceptor.close()
    assert all(listener.closed for listener in setting.listeners)
    assert held.closed
    assert setting.quotas.total == 0
    assert not setting.listening


def test_a_wakeup_between_two_waits_is_not_lost() -> None:
    # Whoever asks the thread to stop may do so while it is between looking at its queues and waiting.
    poller = SelectorPoller()
    arm = poller.arm

    class Late:
        """Wakes the acceptor just before it arms: the worst moment."""

        def __getattr__(self, name: str) -> Any:
            return getattr(poller, name)

        def arm(self) -> None:
            acceptor.wakeup()
            arm()

    late: Any = Late()
    acceptor = Acceptor([], ConnectionQuotas(1, 1, {}, 0), late, ManualClock())
    ended: list[bool] = []

    class Body:
        def step(self, timeout: float | None) -> bool:
            acceptor.step(None)
            ended.append(True)
            return False

        def wakeup(self) -> None: ...

    thread = system_runtime().threads.spawn("acceptor", Body(), lambda _: None)
    try:
        wait_for(lambda: ended, "it waits for ever")
    finally:
        thread.ask_to_stop()
        while not thread.stop(0.01):
            poller.arm()
            poller.wakeup()
        poller.close()
