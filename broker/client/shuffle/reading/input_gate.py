"""Reads result partitions. A gate holds all channels of one reader (Flink's SingleInputGate).

>>> with InputGate([("127.0.0.1:9094", partition, 0)]) as gate:
...     for record in gate.records():
...         print(record)

The I/O thread puts received buffers into the channels' queues, and channels with items into the gate's line. The
reader's thread takes one buffer from the first channel and moves the channel to the end of the line, so that no channel
starves. One lock guards the queues, the line and the credit.

``UnionInputGate`` reads several gates as one, for a task with several inputs, as Flink's does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from broker.client.shuffle import io_loop
from broker.client.shuffle.connection import CONNECT_TIMEOUT_S
from broker.client.shuffle.errors import LocalTransportError, ShuffleClosedError, of_another_process
from broker.client.shuffle.io_loop import IoLoop
from broker.client.shuffle.local_channel import LocalInputChannel
from broker.client.shuffle.local_exchange import LocalExchange
from broker.client.shuffle.names import Address, PartitionLike, parse_address, partition_id
from broker.client.shuffle.reading.buffer_or_event import BufferOrEvent, BufferRun, Item
from broker.client.shuffle.reading.checkpointed_input_gate import CheckpointedInputGate
from broker.client.shuffle.reading.credit import FloatingPool
from broker.client.shuffle.reading.input_channel import InputChannel
from broker.client.shuffle.reading.reader import Reader, Signal
from broker.client.shuffle.reading.remote_input_channel import RemoteInputChannel
from broker.client.shuffle.security import SecurityLike, open_tls
from broker.runtime import forks
from broker.runtime.threads import Event as ThreadEvent
from broker.runtime.threads import RLock
from protocol.errors import ProtocolError
from protocol.shuffle import events
from protocol.shuffle.buffer_response import DEFAULT_BUFFER_SIZE
from protocol.shuffle.compression import Codec, decompress
from protocol.shuffle.data_type import IS_BLOCKING_UPSTREAM
from protocol.shuffle.events import Event
from protocol.shuffle.ids import Generation, IndexSet

# How often a waiting reader checks that the I/O thread still runs.
_LOOK_S = 1.0

# The address, the partition, and the subpartition or the first and the last subpartition.
ChannelLike = tuple[str | Address | LocalExchange, PartitionLike, int | tuple[int, int]]


class InputGate(Reader):
    """``channels``: an ``(address, partition, subpartition or (first, last))`` each; ``address`` is ``host:port``, or a
    ``LocalExchange`` for partitions that are written in this process.

    ``credit``: buffers of each channel alone (Flink's buffers-per-channel), 0 or more; ``floating_buffers``: buffers
    that the channels share (floating-buffers-per-gate). So at most ``channels * credit + floating_buffers`` buffers of
    ``buffer_size`` bytes wait here. ``codec``: the compression of compressed buffers, which the wire does not state.
    ``partition_wait``: for how many s to ask for a partition that does not exist yet. ``generation``: of Flink's
    protocol. ``answer_timeout``: after how many s of silence ``poll`` gives up a connection. The peer is asked by a
    frame that Flink's servers do not know, so set it only for this broker; by default (None) ``poll`` waits as long as
    the producer sends nothing. ``security``: settings by Kafka's names, for TLS. ``loop``: for simulations.

    ``poll`` raises the errors of the channels; an error's attribute ``channel`` is the channel's number.
    """

    def __init__(
        self,
        channels: Sequence[ChannelLike],
        *,
        credit: int = 2,
        floating_buffers: int = 8,
        buffer_size: int = DEFAULT_BUFFER_SIZE,
        codec: Codec | str = Codec.LZ4,
        partition_wait: float = 30.0,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        answer_timeout: float | None = None,
        generation: Generation | str = Generation.V2_0,
        security: SecurityLike = None,
        loop: IoLoop | None = None,
    ) -> None:
        if credit < 0 or floating_buffers < 0 or credit + floating_buffers == 0:
            raise ValueError("a gate needs buffers: credit and floating_buffers are 0 or more, and not both 0")
        specs = [(place, partition_id(partition), _indices(indices)) for place, partition, indices in channels]
        places = [place if isinstance(place, LocalExchange) else parse_address(place) for place, _, _ in specs]
        self.tls = open_tls(security, [place for place, _, _ in specs])
        self.credit = credit
        self.buffer_size = buffer_size
        self.partition_wait = partition_wait
        self.connect_timeout = connect_timeout
        self.answer_timeout = answer_timeout
        self.generation = Generation(generation)
        self.codec = codec if isinstance(codec, Codec) else Codec(codec.upper())
        self.lock = RLock()
        self.pool = FloatingPool(floating_buffers)
        self.signal = Signal(ThreadEvent())
        self._line: deque[InputChannel] = deque()
        self._out: Item | None = None  # the reader's current item
        # Half of a channel's buffers: the sender continues while the reader works on the rest.
        self._run_max = max(1, (credit + floating_buffers) // 2)
        self._ends_of_data = 0
        self._acknowledge = False  # at the next poll, because all data has ended
        self._closed = False
        self._why_closed = ShuffleClosedError("the gate is closed")
        self._aligned: CheckpointedInputGate | None = None
        self._owns_loop = loop is None
        self.loop = loop or io_loop.acquire()
        self._channels: list[InputChannel] = []
        for index, (place, (_, partition, indices)) in enumerate(zip(places, specs, strict=True)):
            channel: InputChannel
            if isinstance(place, LocalExchange):
                channel = LocalInputChannel(self, index, partition, indices, place.partitions)
            else:
                channel = RemoteInputChannel(self, index, partition, indices, place)
            self._channels.append(channel)
        self._unfinished = len(self._channels)
        forks.tell(self)
        for channel in self._channels:
            channel.request()

    # -- for channels, with the lock held -------------------------------------------------------------------------

    def available(self, channel: InputChannel) -> None:
        """The channel, which is not in line, has an item for the reader."""
        if channel.blocked:
            return
        channel.in_line = True
        self._line.append(channel)
        self.signal.tell()

    def available_first(self, channel: InputChannel) -> None:
        """The channel has a priority event, which is read first, even if the channel is blocked."""
        if channel.in_line:
            self._line.remove(channel)
        channel.in_line = True
        self._line.appendleft(channel)
        self.signal.tell()

    def tell_credit(self) -> None:
        """Have every channel in ``pool.announce`` send its new credit to its sender."""
        announce = self.pool.announce
        for buffers in announce:
            owner = buffers.owner
            assert owner is not None
            owner.announce_credit()
        announce.clear()

    # -- for the reader -------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._unfinished == 0

    @property
    def channels(self) -> int:
        return len(self._channels)

    def poll(self, timeout: float | None = None) -> BufferOrEvent | None:
        item = self._poll(self.take, timeout)
        assert not isinstance(item, BufferRun)
        return item

    def poll_run(self, timeout: float | None = None) -> Item | None:
        return self._poll(self.take_run, timeout)

    def _poll(self, take: Callable[[], Item | None], timeout: float | None) -> Item | None:
        item = take()
        if item is not None or self._unfinished == 0:
            return item
        clock = self.loop.now
        began = clock()
        deadline = None if timeout is None else began + timeout
        signal = self.signal
        while True:
            signal.arm()
            item = take()
            if item is not None or self._unfinished == 0:
                return item
            if self.loop.crashed is not None:
                raise self.loop.crashed
            # The wait is bounded, because neither a dead I/O thread nor a stopped server signals anything.
            patience = _LOOK_S if deadline is None else min(_LOOK_S, deadline - clock())
            if patience <= 0:
                return None
            silence_max_s = self.answer_timeout
            if silence_max_s is not None:
                patience = min(patience, silence_max_s / 4)
                waited_s = clock() - began
                if waited_s * 3 >= silence_max_s:
                    self.loop.call(partial(self._check_peers, waited_s, silence_max_s))
            signal.wait(patience)

    def _check_peers(self, waited_s: float, silence_max_s: float) -> None:
        """The reader waits, although its channels have room for more. Runs on the I/O thread."""
        for channel in self._channels:
            if not channel.finished:
                channel.check_peer(waited_s, silence_max_s)

    def take(self) -> BufferOrEvent | None:
        """``poll`` without waiting."""
        with self.lock:
            self._release_out()
            item = self._next(lambda channel: channel.next())
            if self.pool.announce:
                self.tell_credit()
        assert not isinstance(item, BufferRun)
        self._out = item
        if item is not None and item.compressed:
            self._decompress(item)
        return item

    def take_run(self) -> Item | None:
        """``poll_run`` without waiting."""
        with self.lock:
            self._release_out()
            most = self._run_max
            item = self._next(lambda channel: channel.next_run(most))
            if self.pool.announce:
                self.tell_credit()
        self._out = item
        if type(item) is BufferOrEvent and item.compressed:
            self._decompress(item)
        return item

    def _release_out(self) -> None:
        if self._closed:
            raise self._why_closed
        out, self._out = self._out, None
        if out is not None:
            out.release()
        if self._acknowledge:
            self._acknowledge_all()

    def _next(self, next_of: Callable[[InputChannel], Item | Exception | None]) -> Item | None:
        line = self._line
        while line:
            channel = line.popleft()
            channel.in_line = False
            if channel.blocked and not channel.has_priority():
                continue
            item = next_of(channel)
            if channel.has_next():
                if channel.has_priority():
                    self.available_first(channel)
                else:
                    self.available(channel)
            if item is None or channel.finished:
                continue
            if isinstance(item, BaseException):
                self._finish(channel)
                item.channel = channel.index  # type: ignore[attr-defined]
                raise item
            if type(item) is BufferRun:
                return item
            assert type(item) is BufferOrEvent
            if item.data_type.is_buffer or self._event(channel, item):
                return item
        return None

    def _event(self, channel: InputChannel, item: BufferOrEvent) -> bool:
        """Decode the event. False if the reader must not get it."""
        data_type = item.data_type
        assert item.data is not None
        try:
            item.event = events.parse(item.data, self.generation)
        except ProtocolError as error:
            self._finish(channel)
            failed = LocalTransportError(f"channel {channel.index}: {error}")
            failed.channel = channel.index  # type: ignore[attr-defined]
            raise failed from error
        item.data = None
        if IS_BLOCKING_UPSTREAM[data_type]:
            channel.sender_waits = True
        # Each subpartition of a range ends; the reader gets the last of these ends. The event decides, not the data
        # type: before 1.19 these events have no data type of their own.
        if isinstance(item.event, events.EndOfData):
            channel.ends_of_data += 1
            if channel.ends_of_data < channel.subpartitions.size:
                return False
            self._ends_of_data += 1
            self._acknowledge = self._ends_of_data == len(self._channels)
        elif isinstance(item.event, events.EndOfPartition):
            channel.ends_of_partition += 1
            if channel.ends_of_partition < channel.subpartitions.size:
                return False
            self._finish(channel)
        return True

    def _finish(self, channel: InputChannel) -> None:
        if not channel.finished:
            channel.finished = True
            self._unfinished -= 1
            channel.release()

    def _acknowledge_all(self) -> None:
        # A Flink task that has sent EndOfData waits for this message before it ends.
        self._acknowledge = False
        for channel in self._channels:
            if not channel.finished:
                channel.acknowledge_all()

    def _decompress(self, item: BufferOrEvent) -> None:
        assert item.data is not None
        try:
            item.data = decompress(self.codec, item.data, self.buffer_size)
        except ProtocolError as error:
            with self.lock:
                self._finish(self._channels[item.channel])
            failed = LocalTransportError(f"channel {item.channel}: {error}")
            failed.channel = item.channel  # type: ignore[attr-defined]
            raise failed from error
        item.compressed = False

    def block(self, channel: int) -> None:
        with self.lock:
            self._channels[channel].blocked = True

    def resume(self, channel: int) -> None:
        with self.lock:
            resumed = self._channels[channel]
            resumed.blocked = False
            if not resumed.in_line and resumed.has_next():
                self.available(resumed)
            if resumed.sender_waits:
                resumed.sender_waits = False
                resumed.resume()

    def send_event(self, event: events.Event, channel: int | None = None) -> None:
        data = events.encode(event)
        with self.lock:
            for target in self._targets(channel):
                target.send_event(data)

    def announce_buffer_size(self, size: int, channel: int | None = None) -> None:
        if size <= 0:
            raise ValueError(f"a buffer size of {size} bytes is not possible")
        with self.lock:
            for target in self._targets(channel):
                target.announce_buffer_size(size)

    def _targets(self, channel: int | None) -> Sequence[InputChannel]:
        return self._channels if channel is None else [self._channels[channel]]

    def aligned(self) -> Reader:
        if self._aligned is None:
            self._aligned = CheckpointedInputGate(self)
        return self._aligned

    def close(self) -> None:
        with self.lock:
            if self._closed:
                return
            self._closed = True
            for channel in self._channels:
                channel.release()
            self._line.clear()
            self.signal.tell()
        if self._owns_loop:
            io_loop.run(self.loop, self._disconnect)
            io_loop.release(self.loop)
        else:
            self.loop.call(self._disconnect)

    def forked(self) -> None:
        """Close this copy in a forked child. The parent keeps using the gate."""
        self.lock = RLock()
        self.signal = Signal(ThreadEvent())
        self._closed = True
        self._why_closed = of_another_process()

    def _disconnect(self) -> None:
        for channel in self._channels:
            channel.disconnect()


def _indices(indices: int | tuple[int, int]) -> IndexSet:
    start, end = (indices, indices) if isinstance(indices, int) else indices
    if not 0 <= start <= end:
        raise ValueError(f"{start} to {end} is no range of subpartitions")
    return IndexSet(start, end)


class UnionInputGate(Reader):
    """The channels are those of the first gate, then those of the second, and so on, numbered from 0. The union owns
    the gates: do not poll them directly; closing the union closes them. Gates take turns, buffer by buffer.
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

    def _addressed(self, channel: int | None) -> Sequence[tuple[InputGate, int | None]]:
        """The gate and number of the channel; of None, each gate with None."""
        return [(gate, None) for gate in self._gates] if channel is None else [self._find(channel)]

    def resume(self, channel: int) -> None:
        gate, number = self._find(channel)
        gate.resume(number)

    def block(self, channel: int) -> None:
        gate, number = self._find(channel)
        gate.block(number)

    def send_event(self, event: Event, channel: int | None = None) -> None:
        for gate, number in self._addressed(channel):
            gate.send_event(event, number)

    def announce_buffer_size(self, size: int, channel: int | None = None) -> None:
        for gate, number in self._addressed(channel):
            gate.announce_buffer_size(size, number)

    def aligned(self) -> Reader:
        if self._aligned is None:
            self._aligned = CheckpointedInputGate(self)
        return self._aligned

    def close(self) -> None:
        for gate in self._gates:
            gate.close()
