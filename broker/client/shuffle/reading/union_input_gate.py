"""Several gates that are read as one, for a task with several inputs (Flink's UnionInputGate).

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from collections.abc import Callable, Sequence

from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent, BufferRun, Item
from broker.client.shuffle.reading.checkpointed_input_gate import CheckpointedInputGate
from broker.client.shuffle.reading.input_gate import InputGate
from broker.client.shuffle.reading.reader import Reader
from protocol.shuffle.events import Event


class UnionInputGate(Reader):
    """Its channels are those of the first gate, then those of the second, and so on, numbered from 0. It owns the gates: do
    not poll them directly; closing the union closes them. Gates take turns, buffer by buffer.
    """

    def __init__(self, gates: Sequence[InputGate]) -> None:
        if not gates:
            raise ValueError("a union needs at least one gate")
        self._gates = list(gates)
        self._offsets: list[int] = []
        count = 0
        for gate in self._gates:
            self._offsets.append(count)
            count += gate.channels
        self._count = count
        self._turn = 0
        self._aligned: CheckpointedInputGate | None = None
        # From here on all gates set the same signal.
        self._signal = self._gates[0].signal
        for gate in self._gates[1:]:
            with gate.lock:
                gate.signal = self._signal

    @property
    def finished(self) -> bool:
        return all(gate.finished for gate in self._gates)

    @property
    def channels(self) -> int:
        return self._count

    def poll(self, timeout: float | None = None) -> BufferOrEvent | None:
        item = self._poll(InputGate.take, timeout)
        assert not isinstance(item, BufferRun)
        return item

    def poll_run(self, timeout: float | None = None) -> Item | None:
        return self._poll(InputGate.take_run, timeout)

    def _poll(self, take: Callable[[InputGate], Item | None], timeout: float | None) -> Item | None:
        item = self._take(take)
        if item is not None or self.finished:
            return item
        loop = self._gates[0].loop
        deadline = None if timeout is None else loop.now() + timeout
        while True:
            self._signal.arm()
            item = self._take(take)
            if item is not None or self.finished:
                return item
            if loop.crashed is not None:
                raise loop.crashed
            patience = 1.0 if deadline is None else min(1.0, deadline - loop.now())
            if patience <= 0:
                return None
            self._signal.wait(patience)

    def _take(self, take: Callable[[InputGate], Item | None]) -> Item | None:
        gates = self._gates
        for _ in gates:
            turn = self._turn
            self._turn = (turn + 1) % len(gates)
            try:
                item = take(gates[turn])
            except Exception as error:
                channel = getattr(error, "channel", None)
                if channel is not None:
                    error.channel = self._offsets[turn] + channel  # type: ignore[attr-defined]
                raise
            if item is not None:
                item.channel += self._offsets[turn]
                return item
        return None

    def _find(self, channel: int) -> tuple[InputGate, int]:
        for gate, offset in zip(reversed(self._gates), reversed(self._offsets), strict=True):
            if channel >= offset:
                return gate, channel - offset
        raise IndexError(channel)

    def resume(self, channel: int) -> None:
        gate, number = self._find(channel)
        gate.resume(number)

    def block(self, channel: int) -> None:
        gate, number = self._find(channel)
        gate.block(number)

    def send_event(self, event: Event, channel: int | None = None) -> None:
        if channel is not None:
            gate, number = self._find(channel)
            gate.send_event(event, number)
        else:
            for gate in self._gates:
                gate.send_event(event)

    def announce_buffer_size(self, size: int, channel: int | None = None) -> None:
        if channel is not None:
            gate, number = self._find(channel)
            gate.announce_buffer_size(size, number)
        else:
            for gate in self._gates:
                gate.announce_buffer_size(size)

    def aligned(self) -> Reader:
        if self._aligned is None:
            self._aligned = CheckpointedInputGate(self)
        return self._aligned

    def close(self) -> None:
        for gate in self._gates:
            gate.close()
