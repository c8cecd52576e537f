"""What a writer keeps and resends: against a broker at the end of connections that break."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.client.shuffle.errors import PartitionLostError
from broker.client.shuffle.writing.resend_window import Push, ResendWindow
from protocol.errors import ProtocolError


class WriterAndBroker(RuleBasedStateMachine):
    """The broker takes the number it expects and passes over lower ones; a cut loses what is on its way, either way."""

    @initialize(subpartitions=st.integers(1, 3), max_bytes=st.integers(1, 60))
    def begin(self, subpartitions: int, max_bytes: int) -> None:
        self.window = ResendWindow(subpartitions, max_bytes)
        self.pushed: list[list[bytes]] = [[] for _ in range(subpartitions)]
        self.stored: list[list[bytes]] = [[] for _ in range(subpartitions)]
        self.to_broker: list[Push] = []
        self.to_writer: list[tuple[int, int]] = []  # acknowledgements
        self.broker_credit = 0  # granted and not used
        self.connected = False

    @precondition(lambda self: not self.connected)
    @rule(credit=st.integers(0, 5))
    def connect(self, credit: int) -> None:
        self.connected = True
        self.broker_credit = credit
        self.window.opened(credit, [len(stored) for stored in self.stored])

    @precondition(lambda self: self.connected)
    @rule()
    def cut(self) -> None:
        self.connected = False
        self.to_broker.clear()
        self.to_writer.clear()
        self.window.disconnected()

    @rule(data=st.data(), size=st.integers(0, 20))
    def push(self, data: st.DataObject, size: int) -> None:
        subpartition = data.draw(st.integers(0, len(self.pushed) - 1))
        if self.window.has_room(size):
            payload = f"{subpartition}.{len(self.pushed[subpartition])}".encode().ljust(size)
            self.window.push(subpartition, 1, False, payload)
            self.pushed[subpartition].append(payload)

    @rule(most=st.integers(1, 4))
    def send(self, most: int) -> None:
        for push in self.window.take(most):
            assert self.connected
            self.broker_credit -= 1
            assert self.broker_credit >= 0, "sent without credit"
            self.to_broker.append(push)

    @precondition(lambda self: self.to_broker)
    @rule(acknowledge=st.booleans())
    def arrive(self, acknowledge: bool) -> None:
        push = self.to_broker.pop(0)
        stored = self.stored[push.subpartition]
        assert push.sequence <= len(stored), "a gap"
        if push.sequence == len(stored):
            stored.append(push.payload)
        if acknowledge:
            self.to_writer.append((push.subpartition, len(stored)))

    @precondition(lambda self: self.to_writer)
    @rule()
    def acknowledge(self) -> None:
        self.window.acknowledged(*self.to_writer.pop(0))

    @precondition(lambda self: self.connected)
    @rule(credit=st.integers(1, 3))
    def grant(self, credit: int) -> None:
        self.broker_credit += credit
        self.window.granted(credit)

    @invariant()
    def nothing_is_stored_twice_or_out_of_order(self) -> None:
        for pushed, stored in zip(getattr(self, "pushed", []), getattr(self, "stored", []), strict=True):
            assert pushed[: len(stored)] == stored

    @invariant()
    def bytes_are_counted(self) -> None:
        if hasattr(self, "window"):
            kept = sum(len(push.payload) for queue in self.window._kept for push in queue)
            assert kept == self.window.kept_bytes

    def teardown(self) -> None:
        """When nothing breaks any more, all gets there."""
        if not hasattr(self, "window"):
            return
        if self.connected:
            self.cut()
        self.connect(1000)
        while self.window.take is not None and not self.window.all_sent:
            self.send(4)
        while self.to_broker:
            self.arrive(True)
        while self.to_writer:
            self.acknowledge()
        assert self.pushed == self.stored
        assert self.window.all_acknowledged
        assert self.window.kept_bytes == 0


TestWriterAndBroker = WriterAndBroker.TestCase


def test_a_new_writer_goes_on_where_the_last_one_stopped() -> None:
    window = ResendWindow(2, 100)
    window.opened(10, (5, 0))
    assert window.push(0, 1, False, b"x").sequence == 5
    assert window.push(1, 1, False, b"x").sequence == 0


def test_a_broker_that_has_forgotten_what_it_acknowledged_is_an_error() -> None:
    window = ResendWindow(1, 100)
    window.opened(10, (0,))
    window.push(0, 1, False, b"x")
    window.take(1)
    window.acknowledged(0, 1)
    window.disconnected()
    with pytest.raises(PartitionLostError):
        window.opened(10, (0,))


def test_a_broker_that_has_more_than_was_pushed_is_an_error() -> None:
    window = ResendWindow(1, 100)
    window.opened(10, (0,))
    with pytest.raises(ProtocolError):
        window.acknowledged(0, 1)


def test_a_payload_larger_than_the_window_goes_alone() -> None:
    window = ResendWindow(1, 10)
    window.opened(10, (0,))
    assert window.has_room(50)
    window.push(0, 1, False, bytes(50))
    assert not window.has_room(0)
