"""A processor: one thread that owns a poller and its connections. Other threads reach it through its inbox only.

It reads bytes, cuts them into frames, runs requests that cannot block (``Service.inline``), hands the others to the request
channel, sends answers in order, and enforces every bound: frame size, request memory, outgoing bytes, idle time. No other thread
reads, writes, registers or closes its sockets; other threads put work into the inbox and wake the poller.

This module is the loop, whose seven steps are Kafka's, and the inbox. The rest is in parts, each of which owns its state:

| part | what it does |
|---|---|
| `connections.py` | opens, registers and closes connections; `Turns`: which one may go on, for how long, and what ends a mute |
| `receiving.py` | reads from sockets, cuts frames, runs requests or hands them to the handlers |
| `sending.py` | queues and sends answers; the high-water mark |
| `leased_sending.py` | in its place where the broker leads by a lease |
| `waiters.py` | connections that wait for the request channel or for memory |
| `handshakes.py` | TLS handshakes |
| `expiry.py` | idle, slow and excess connections |
| `departure.py` | hands the connections over when the processor leaves |
| `relief.py` | has another thread go on when a disk keeps this one |
| `metrics/request_times.py` | measures requests |

All of them run on the processor's thread, unless a module says otherwise.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

import attrs

from broker.metrics.request_times import Measuring, RequestTimes
from broker.metrics.tracing import Traces
from broker.network.connection import ProcessorConnection
from broker.network.connections import WHOLE_TURN, WHOLE_TURNS, ConnectionTable, ProcessorStats, Turns
from broker.network.departure import Departure, Heir, Moving, Work
from broker.network.expiry import Expiry, Unsent
from broker.network.leased_sending import Gate, LeasedSending
from broker.network.memory_pool import MemoryPool
from broker.network.mute import HANDSHAKING
from broker.network.new_connection import Attachment, NewConnection
from broker.network.quota import ConnectionQuotas
from broker.network.receiving import Receiving, Relieved, Seat
from broker.network.request_channel import RequestChannel
from broker.network.sending import Sending
from broker.network.service import Outbox, Request, Verb
from broker.runtime.clock import Clock
from broker.runtime.poller import READ, WRITE, Poller, Ready
from broker.runtime.run_token import KEEP_S, TokenHolder
from broker.runtime.threads import Threads

# Longest sleep (s) of an idle processor. Idle and slow connections are looked for this often.
_NAP_S = 1.0


@attrs.frozen
class ProcessorSettings:
    idle_max_s: float  # connections_max_idle_ms
    high_water_bytes: int
    low_water_bytes: int
    handshake_timeout_s: float = 10.0  # handshake_timeout_ms
    traces: Traces | None = None  # None: no request is traced
    gate: Gate | None = None  # None: the broker needs no lease


class Processor:
    """The body of one processor thread."""

    def __init__(
        self,
        number: int,
        *,
        settings: ProcessorSettings,
        poller: Poller,
        clock: Clock,
        threads: Threads,
        channel: RequestChannel,
        memory: MemoryPool,
        unsent: Unsent,
        outbox: Outbox,
        quotas: ConnectionQuotas,
        on_room: Callable[[], None],
        times: RequestTimes | None = None,
        token: TokenHolder | None = None,
        attachment: Attachment | None = None,
    ) -> None:
        """``on_room`` wakes the acceptor: the queue of new connections has room again, or a connection was closed.

        ``times``: the measurements of an earlier processor, to be continued.
        """
        self.number = number
        self.stats = ProcessorStats()
        self.idle_s = 0.0  # time spent waiting; only the processor's thread writes it
        self.times = RequestTimes() if times is None else times
        self._settings = settings
        self._poller = poller
        self._monotonic = clock.monotonic
        self._get_ident = threads.get_ident
        self._ident = -1  # of the thread that runs step()
        self._token = token
        self._give_token = _do_nothing if token is None else token.give
        self._memory = memory
        self._unsent = unsent
        self._attachment = attachment
        self._attached = False
        self._was_relieved = False  # and its present thread has not begun yet
        # None: its thread is never relieved (see ``relief.py``).
        self.seat: Seat | None = None
        self._inbox: deque[Work] = deque()
        self._room = False  # set from other threads: the channel or the pool has room again
        # Set when the processor is to go: the processors among which its connections are divided.
        self._heirs: Callable[[], Sequence[Heir]] | None = None
        self._next_sweep = 0.0

        self._measuring = Measuring(number, self.times, settings.traces, clock.monotonic)
        self._turns = Turns(self._measuring, self.stats, clock.monotonic())
        self._table = ConnectionTable(
            self,
            number,
            poller=poller,
            clock=clock,
            memory=memory,
            quotas=quotas,
            traces=settings.traces,
            handshake_timeout_s=settings.handshake_timeout_s,
            established=self._established,
            on_room=on_room,
        )
        self._make_parts(quotas, outbox, channel)
        self._bind()

    def _make_parts(self, quotas: ConnectionQuotas, outbox: Outbox, channel: RequestChannel) -> None:
        table, turns, measuring, stats, settings = self._table, self._turns, self._measuring, self.stats, self._settings
        self._expiry = Expiry(
            self.number,
            table.all,
            table.disconnect,
            idle_max_s=settings.idle_max_s,
            high_water_bytes=settings.high_water_bytes,
            memory=self._memory,
            unsent=self._unsent,
            quotas=quotas,
        )
        new_sending = Sending if settings.gate is None else partial(LeasedSending, settings.gate, self.submit)
        self._sending = new_sending(
            table,
            turns,
            measuring,
            self._expiry,
            stats,
            high_water_bytes=settings.high_water_bytes,
            low_water_bytes=settings.low_water_bytes,
            monotonic=self._monotonic,
            give_token=self._give_token,
            take_rest=self._take_rest,
        )
        self._receiving = Receiving(
            table,
            turns,
            measuring,
            self._sending,
            stats,
            outbox=outbox,
            channel=channel,
            memory=self._memory,
            monotonic=self._monotonic,
            give_token=self._give_token,
            on_room=self._room_came,
        )
        self.departure = Departure(self, self._inbox)
        self._moving = Moving(self.departure, table, turns, self._sending, self._receiving, self._expiry)

    def _bind(self) -> None:
        """What is read in every step, and the verbs of `Mailbox`, which belong to the parts."""
        self.connections = self._table.all
        self.handshakes = self._table.handshakes
        self._handshake_turns = self.handshakes.turns
        self._new = self._table.arrivals.waiting
        self._runnable = self._turns.runnable
        self._receive = self._receiving.receive
        self.send = self._sending.send
        self.no_op = self._sending.no_op
        self.close_connection = self._sending.close_connection
        self.push = self._sending.push
        self.call = self._sending.call
        self.hand_over = self._receiving.hand_over
        self.go_on = self._receiving.go_on
        self.give_back = self._table.give_back
        self.throttle = self._turns.throttle
        self.take_over = self._moving.take_over

    def _established(self, connection: ProcessorConnection) -> None:
        self._receiving.established(connection)

    def _take_rest(self, connection: ProcessorConnection) -> None:
        self._receiving.take_rest(connection)

    # -- called from other threads ------------------------------------------------------------------------------------

    def offer(self, new: NewConnection) -> bool:
        """Queue a new connection. False if the queue is full or the processor is being shut down."""
        if not self._table.arrivals.offer(new):
            return False
        self._poller.wakeup()
        return True

    def wakeup(self) -> None:
        self._poller.wakeup()

    def submit(self, verb: Verb, target: Any, argument: Any) -> None:
        """Run ``verb(target, argument)`` on the processor's thread: at once if this is it, else soon."""
        seat = self.seat  # before the comparison: `relieve` changes it after ``_ident``
        if self._get_ident() == self._ident:
            request = None if seat is None else seat.request
            if request is None:
                verb(target, argument)
                return
            assert seat is not None
            with seat.lock:
                if not seat.relieved:  # it is handling a request that may wait
                    seat.request = None  # what the verb leads to finds the seat taken
                    try:
                        verb(target, argument)
                    finally:
                        seat.request = request
                    return
        self._inbox.append((verb, target, argument))
        if self.departure.begun:
            self.departure.forward()
        self._poller.wakeup()

    def leave(self, heirs: Callable[[], Sequence[Heir]]) -> None:
        """Accept no further connection, and hand all of them over to ``heirs`` at the end of the next step. Then
        ``departure.over`` is set, and the thread may end."""
        self._table.arrivals.close()
        self._heirs = heirs
        self._poller.wakeup()

    def watch(self) -> None:
        """Let its thread be relieved. Before it starts."""
        self.seat = self._receiving.seat = Seat()

    def relieve(self, request: Request, on_relieved: Callable[[], None]) -> bool:
        """Take it from its thread, if that is still handling this request. ``on_relieved`` has another thread step it."""
        seat = self.seat
        assert seat is not None
        if not seat.lock.acquire(False):
            return False
        try:
            if seat.request is not request:
                return False
            seat.relieved = True
            self._ident = -1
            if self._token is not None:
                self._token.change_thread()
            self._receiving.relieve(request)
            self._sending.dirty = [each for each in self.connections if each.dirty]
            self._was_relieved = True
            self.watch()
            on_relieved()
        finally:
            seat.lock.release()
        return True

    def drain(self) -> None:
        """Accept no further request or connection. Requests in flight are still answered."""
        self._table.arrivals.close()
        self.submit(self._table.begin_draining, None, None)

    def close_outlived(self) -> None:
        """Close the connections that were there when the broker was suspended (``ConnectionQuotas.suspend``)."""
        self.submit(self._table.close_outlived, None, None)

    @property
    def drained(self) -> bool:
        """Whether the processor is draining, no request is in flight and no answer waits to be sent. For any thread."""
        # Its thread begins to drain by work of the inbox, so it is not about to take a request.
        return self._table.draining and not self._inbox and self._table.is_quiet()

    @property
    def waiting(self) -> int:
        """Pieces of work in its inbox: answers of other threads, most of them. For any thread."""
        return len(self._inbox)

    def _room_came(self) -> None:
        self._room = True
        self._poller.wakeup()

    # -- the steps ----------------------------------------------------------------------------------------------------

    def step(self, timeout: float | None) -> bool:
        try:
            return self._step(timeout)
        except Relieved:
            return False

    def _step(self, timeout: float | None) -> bool:
        self._ident = self._get_ident()
        if self._was_relieved:
            self._was_relieved = False
            if self._attachment is not None and self._attached:
                self._attachment.attach()
        if self._attachment is not None and not self._attached:
            self._attach(self._attachment)
        if self._heirs is not None and self.departure.over:  # its senders pass on everything in the inbox
            self.poll(timeout)
            return False
        # Most steps have nothing to do but to read, and a question costs less than a call.
        if self._new:
            self.configure_new_connections()
        if self._inbox or self._sending.dirty or self._room or self._runnable:
            self.process_new_responses()
        ready = self.poll(timeout)
        self.process_completed_receives(ready)
        self.process_completed_sends(ready)
        if self._table.disconnected:
            self.process_disconnected()
        if self._turns.now >= self._next_sweep:
            self.close_excess_connections()
        if self._heirs is not None:
            self._hand_over_connections(self._heirs)
        return bool(ready)

    def configure_new_connections(self) -> None:
        """Register connections that the acceptor has queued."""
        self._table.open_new(self._turns.now)

    def process_new_responses(self) -> None:
        """Run the work in the inbox, then continue connections that can go on."""
        inbox, sending = self._inbox, self._sending
        if inbox:
            for _ in range(len(inbox)):
                verb, target, argument = inbox.popleft()
                try:
                    verb(target, argument)
                except Exception as error:  # the seam: a service's bug costs the connection it was about
                    self._table.failed(target, error)
        if sending.dirty:
            sending.flush_dirty()
        if self._room:
            self._room = False
            self._receiving.retry()
        runnable = self._runnable
        if runnable:
            for _ in range(len(runnable)):  # connections that become runnable meanwhile wait for the next step
                connection = runnable.popleft()
                connection.runnable = False
                self._receiving.resume(connection)
            if sending.dirty:
                sending.flush_dirty()

    def poll(self, timeout: float | None) -> Sequence[tuple[Ready, int]]:
        """Wait for sockets or for a wake-up."""
        if self._attachment is not None and self._attachment.due:
            self._run_attached(self._attachment.begin_due)
        self._poller.arm()
        work = (
            self._inbox or self._sending.dirty or self._new or self._runnable or self._table.disconnected or self._room
        )
        if work or self._handshake_turns:
            timeout = 0.0
        elif timeout is None or timeout > _NAP_S:
            timeout = _NAP_S
        token, only_looks = self._token, False
        if token is not None and token.waiting and token.held:
            if self._monotonic() - token.took_at < KEEP_S:
                only_looks, timeout = timeout > 0.0, 0.0
            else:
                token.give()
        turns, measuring = self._turns, self._measuring
        if timeout:
            if token is not None:
                token.give()
            began = self._monotonic()
            ready = self._poller.poll(timeout)
            turns.now = measuring.began = now = self._monotonic()
            self.idle_s += now - began
        else:
            ready = self._poller.poll(timeout)
            turns.now = measuring.began = now = self._monotonic()
        if token is not None:
            if not token.held:
                if token.take():
                    measuring.began = self._monotonic()
                token.took_at = measuring.began
            elif only_looks and not ready:
                token.give()  # nothing to do: the next step waits
        if now >= measuring.measure_from:
            measuring.measure_from = inf
            measuring.measured = []
        waiting = len(ready) + len(self._runnable)
        if waiting > WHOLE_TURNS:
            turns.shorten(waiting)
        else:
            turns.length = WHOLE_TURN
        return ready

    def process_completed_receives(self, ready: Sequence[tuple[Ready, int]]) -> None:
        """Read from readable sockets and dispatch every complete frame."""
        attachment, token, receive = self._attachment, self._token, self._receive
        for key, events in ready:
            if events & READ:
                connection = key.data
                if connection is attachment and attachment is not None:
                    self._run_attached(attachment.ready)
                elif not connection.closed:
                    if token is not None and token.waiting and token.held:
                        token.pass_on(self._monotonic)
                    receive(connection)
        if self._handshake_turns:
            self._give_token()  # for a signature OpenSSL gives up the interpreter's lock for up to a millisecond
            self.handshakes.run()
        if self._sending.dirty:
            self._sending.flush_dirty()
        measured = self._measuring.measured
        if measured:
            self._measuring.end_step(measured, self._turns.now)

    def process_completed_sends(self, ready: Sequence[tuple[Ready, int]]) -> None:
        """Continue to send to writable sockets."""
        for key, events in ready:
            if events & WRITE:
                connection = key.data
                if connection.holds & HANDSHAKING:
                    self.handshakes.ready(connection)
                elif not connection.closed:
                    self._sending.flush(connection)

    def process_disconnected(self) -> None:
        """Tell services about closed connections."""
        self._table.tell_disconnected()

    def close_excess_connections(self) -> None:
        """About once a second: close idle, slow and excess connections (see `expiry.py`)."""
        now = self._turns.now
        self._next_sweep = now + min(_NAP_S, self._settings.idle_max_s / 4)
        self.stats.idle_closed += self._expiry.close_quiet(now)
        self._expiry.close_slow(now)
        self.handshakes.close_late(now)
        self._sending.high_water_bytes = self._expiry.high_water_bytes
        self._table.give_back_done()
        self._expiry.close_excess()
        if not self._memory.in_use:
            self._memory.trim()

    # -- what is attached ---------------------------------------------------------------------------------------------

    def _attach(self, attachment: Attachment) -> None:
        try:
            self._poller.register(attachment.source, READ, attachment)
        except OSError:  # the system has a bound on these; what is attached can be done without this thread
            self._detach()
            return
        self._attached = True
        attachment.attach()

    def _run_attached(self, work: Callable[[], None]) -> None:
        """What it submits waits in the inbox, where an error costs the connection that it was about, and not this thread."""
        self._ident = -1
        try:
            work()
        finally:
            self._ident = self._get_ident()

    def _detach(self) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            if self._attached:
                self._poller.unregister(attachment.source)
            attachment.detach()

    # -- going ----------------------------------------------------------------------------------------------------------

    def _hand_over_connections(self, heirs: Callable[[], Sequence[Heir]]) -> None:
        """Divide the connections among the heirs, new ones included. Then ``departure.over`` is set."""
        self._moving.take_over_adopted()
        self.configure_new_connections()
        for verb, target, argument in self._moving.hand_over_all(heirs):
            try:
                verb(target, argument)
            except Exception as error:  # the seam, as in `process_new_responses`
                self._table.failed(target, error)
        self.process_disconnected()
        self._detach()
        self._give_token()  # the thread may end without another poll

    def close(self) -> None:
        """Close everything. Called on the processor's thread, or after that thread has ended."""
        self._ident = self._get_ident()
        self._table.draining = True
        self._table.arrivals.close()
        self._moving.take_over_adopted()
        self._table.close_all()
        self.departure.end()
        self._detach()
        self._unsent.report(self.number, 0)
        self._give_token()
        self._poller.close()
        self._ident = -1  # this is no longer the thread of anything


def _do_nothing() -> None:
    """There is no run token."""
