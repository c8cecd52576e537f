"""The pushes that a writer keeps and resends, against a broker behind connections that break."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.client.shuffle.errors import PartitionLostError
from broker.client.shuffle.writing.resend_window import ResendWindow, Taken
from broker.runtime.disk import Buffer
from protocol.errors import ProtocolError


def unsent(window: ResendWindow) -> list[list[Buffer]]:
    """The unsent payloads of each run that has any."""
    return [run.payloads[run.sent :] for run in window._unsent if run.payloads[run.sent :]]


class WriterAndBroker(RuleBasedStateMachine):
    """The broker takes the expected number and skips lower numbers; a cut loses all data in flight, in both directions."""

    @initialize(subpartitions=st.integers(1, 3), max_bytes=st.integers(1, 60))
    def begin(self, subpartitions: int, max_bytes: int) -> None:
        self.window = ResendWindow(subpartitions, max_bytes)
        self.pushed: list[list[bytes]] = [[] for _ in range(subpartitions)]
        self.stored: list[list[bytes]] = [[] for _ in range(subpartitions)]
        self.to_broker: list[tuple[int, int, bytes]] = []  # subpartition, sequence, payload
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

    @rule(data=st.data(), sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6))
    def push_many(self, data: st.DataObject, sizes: list[int]) -> None:
        subpartition = data.draw(st.integers(0, len(self.pushed) - 1))
        pushed = self.pushed[subpartition]
        payloads = [f"{subpartition}.{number}".encode().ljust(size) for number, size in enumerate(sizes, len(pushed))]
        begin = data.draw(st.integers(0, len(payloads) - 1))
        room = self.window.room(payloads, begin)
        # As many as single pushes would allow.
        kept, credit = self.window.kept_bytes, self.window.credit - sum(len(run) for run in unsent(self.window))
        for number, payload in enumerate(payloads[begin:]):
            fits = credit > number and (kept + len(payload) <= self.window.max_bytes or not kept)
            assert fits == (number < room)
            if not fits:
                break
            kept += len(payload)
        if not begin and room:
            self.window.push_many(subpartition, 1, False, payloads[:room])
            pushed += payloads[:room]

    @rule(most=st.integers(1, 4))
    def send(self, most: int) -> None:
        taken = self.window.take(most)
        assert sum(len(run.payloads) for run in taken) <= most
        for run in taken:
            assert len(run.payloads) == len(run.data_types) == len(run.compressed) > 0
            for sequence, payload in enumerate(run.payloads, run.sequence):
                assert self.connected
                self.broker_credit -= 1
                assert self.broker_credit >= 0, "sent without credit"
                self.to_broker.append((run.subpartition, sequence, bytes(payload)))

    @precondition(lambda self: self.to_broker)
    @rule(acknowledge=st.booleans())
    def arrive(self, acknowledge: bool) -> None:
        subpartition, sequence, payload = self.to_broker.pop(0)
        stored = self.stored[subpartition]
        assert sequence <= len(stored), "a gap"
        if sequence == len(stored):
            stored.append(payload)
        if acknowledge:
            self.to_writer.append((subpartition, len(stored)))

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
            kept = sum(len(payload) for queue in self.window._kept for run in queue for payload in run.payloads)
            assert kept == self.window.kept_bytes
            assert self.window._unsent_pushes == sum(len(run) for run in unsent(self.window))
            assert self.window.all_sent == (not unsent(self.window))

    def teardown(self) -> None:
        """When the connection stays up, everything arrives."""
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


def test_new_writer_continues_after_the_last_one() -> None:
    window = ResendWindow(2, 100)
    window.opened(10, (5, 0))
    window.push(0, 1, False, b"x")
    window.push(1, 1, False, b"x")
    assert window.take(2) == [Taken(0, 5, [1], [False], [b"x"]), Taken(1, 0, [1], [False], [b"x"])]


def test_broker_without_its_acknowledged_pushes_is_error() -> None:
    window = ResendWindow(1, 100)
    window.opened(10, (0,))
    window.push(0, 1, False, b"x")
    window.take(1)
    window.acknowledged(0, 1)
    window.disconnected()
    with pytest.raises(PartitionLostError):
        window.opened(10, (0,))


def test_broker_ahead_of_the_pushes_is_error() -> None:
    window = ResendWindow(1, 100)
    window.opened(10, (0,))
    with pytest.raises(ProtocolError):
        window.acknowledged(0, 1)


def test_payload_larger_than_window_goes_alone() -> None:
    window = ResendWindow(1, 10)
    window.opened(10, (0,))
    assert window.has_room(50)
    window.push(0, 1, False, bytes(50))
    assert not window.has_room(0)


def test_pushes_of_a_subpartition_form_one_run() -> None:
    window = ResendWindow(2, 100)
    window.opened(4, (0, 0))
    window.push(0, 1, False, b"0")
    window.push_many(0, 8, True, [b"1", b"2"])
    window.push(1, 1, False, b"x")
    assert window.take(2) == [Taken(0, 0, [1, 8], [False, True], [b"0", b"1"])]
    assert window.take(5) == [Taken(0, 2, [8], [True], [b"2"]), Taken(1, 0, [1], [False], [b"x"])]


def test_push_acknowledged_before_sending_is_not_sent() -> None:
    window = ResendWindow(1, 100)
    window.opened(10, (0,))
    window.push_many(0, 1, False, [b"0", b"1", b"2"])
    window.acknowledged(0, 2)
    assert window.take(10) == [Taken(0, 2, [1], [False], [b"2"])]
    window.push(0, 1, False, b"3")
    window.acknowledged(0, 4)
    window.push(0, 1, False, b"4")
    assert window.take(10) == [Taken(0, 4, [1], [False], [b"4"])]
    assert window.all_sent
