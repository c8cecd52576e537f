"""A client's connection, one at a time, and the requests in flight on it."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import own_apis
from protocol.kafka.schema import control
from tests.sim.clients.connected import Connected
from tests.sim.clients.login import Account, Login
from tests.sim.fabric import ClientSocket
from tests.sim.host import PORT
from tests.sim.world import Violation

if TYPE_CHECKING:
    from tests.sim.history import History
    from tests.sim.ledger import Partition
    from tests.sim.world import World

# The newest versions that these clients know. They choose one at random between the broker's oldest and this.
NEWEST: dict[ApiKey, int] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 8,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 9,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.END_TXN: 3,
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
}
# Their answers say that something is there for good (of Produce, where acks is all).
_PROMISES = frozenset({ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS})
# A running broker on a sound machine answers requests that need not wait within this time (s).
_PATIENCE_S = 20.0


@attrs.define(eq=False)
class Call:
    key: ApiKey
    fields: Mapping[str, Any]
    context: Any = None  # the client's own
    patience_s: float = _PATIENCE_S
    expects_answer: bool = True
    exactly: int = -1  # the version to ask in; -1: any
    version: int = 0
    correlation_id: int = 0
    sent_at: float = 0.0
    sent_step: int = 0


class Client(Connected):
    """The base of all clients. Subclasses choose the requests and check the answers."""

    in_flight_most = 1
    # Where it connects, and as whom it logs in there.
    port = PORT
    account: Account | None = None

    def __init__(self, name: str, world: "World", fabric: Any, history: "History") -> None:
        self.name = name
        self.world = world
        self.fabric = fabric
        self.history = history
        self.rng = world.rng(name)
        self.socket: ClientSocket | None = None
        self.pending: deque[Call] = deque()
        self.paused_until = 0.0
        self.quiet = False  # faults are over: whatever takes long is the broker's fault
        self.closed = False
        self.connects = 0
        self.answers = 0
        self._outbox = bytearray()
        self._inbox = bytearray()
        self._ranges: dict[int, tuple[int, int]] | None = None
        self._connect_at = 0.0
        self._idle_until = 0.0
        self._correlation = 0
        self._abandon_at = math.inf
        self._login: Login | None = None
        self._logs_in_first = False  # before it asks for the versions
        self._renew_at = math.inf
        self._session_end = math.inf
        # The broker has told us to wait until some time between these two: it says for how long, and not from when on.
        self._throttled_at_least_until = self.throttled_until = self._throttled_before_until = 0.0

    # -- for subclasses ---------------------------------------------------------------------------------------------------

    def next_call(self) -> Call | None:
        """What to ask now; None: nothing, until ``idle`` says or an answer comes."""
        raise NotImplementedError

    def answered(self, call: Call, body: Any) -> None:
        raise NotImplementedError

    def lost(self, call: Call) -> None:
        """The connection went before the answer came: it may have happened or not, and may still happen."""

    @property
    def done(self) -> bool:
        """It has all that it came for."""
        return True

    def at_one_node(self, keys: "Sequence[Partition]") -> "Sequence[Partition]":
        """Those of these partitions that one request may name."""
        return keys

    def was_throttled(self, call: Call) -> bool:
        """The call that was just answered may have waited for the end of a throttle."""
        return self._throttled_before_until > call.sent_at

    def idle(self, seconds: float) -> None:
        """Ask ``next_call`` again in so long."""
        self._idle_until = self.world.now + seconds

    # -- Actor --------------------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        now = self.world.now
        if self.closed or now < self.paused_until:
            return False
        socket = self.socket
        if socket is None:
            return now >= self._connect_at
        if socket.readable:
            return True
        if self._outbox and socket.room:
            return True
        if now >= self._abandon_at:
            return True
        return len(self.pending) < self.in_flight_most and now >= self._idle_until and not self._waits_at_the_door

    def deadline(self) -> float | None:
        if self.closed:
            return None
        now = self.world.now
        if now < self.paused_until:
            return self.paused_until
        if self.socket is None:
            return self._connect_at
        moments = []
        if self.pending:
            moments.append(self._abandon_at)
        if self._idle_until > now and len(self.pending) < self.in_flight_most:
            moments.append(self._idle_until)
        moments = [moment for moment in moments if moment != math.inf]
        return min(moments) if moments else None

    def step(self) -> None:
        if self.socket is None:
            self._connect()
            return
        self._receive()
        if self.socket is None:
            return
        now = self.world.now
        if self.pending and now >= self._abandon_at:
            call = self.pending[0]
            self.world.note(f"{self.name} gives up on {call.key.name}")
            if self.quiet and call.sent_at >= self.quiet_since:
                raise Violation(f"{self.name}: {call.key.name} was not answered in {now - call.sent_at:.1f} s")
            self.disconnect()
            return
        self._ask()
        self._transmit()

    @property
    def strict(self) -> bool:
        """Nothing excuses an error: faults are over, and the answer is from a broker that has seen none."""
        return self.quiet and self.is_current

    @property
    def is_current(self) -> bool:
        """The broker that we are connected to has not died."""
        return self.life == self.world.lives

    @property
    def life(self) -> int:
        """Of the broker that we are connected to, be it dead by now."""
        assert self.socket is not None
        return self.socket.wire.life

    # -- connection ---------------------------------------------------------------------------------------------------------

    @property
    def _waits_at_the_door(self) -> bool:
        """Nothing else may be asked before the answers that it waits for have come."""
        return bool(self.pending) and (self._ranges is None or self._logging_in or self.world.now >= self._renew_at)

    @property
    def _logging_in(self) -> bool:
        return self._login is not None and not self._login.done

    def _connect(self) -> None:
        self.socket = self.fabric.connect(self.port, host=f"10.0.0.{1 + self.rng.randrange(3)}")
        if self.socket is None:
            self._connect_at = self.world.now + 0.05 + self.rng.random() * 0.5
            return
        self.connects += 1
        self.world.note(f"{self.name} connects as {self.socket.wire.number}")
        self._ranges = None
        self._outbox.clear()
        self._inbox.clear()
        self._idle_until = 0.0
        self._renew_at = self._session_end = math.inf
        self._throttled_at_least_until = self.throttled_until = 0.0
        if self.account is not None:
            self._login = Login(self.name, self.account, self.rng)
            self._logs_in_first = self.rng.random() < 0.2

    def _gone(self) -> None:
        self.socket = None
        self._connect_at = self.world.now + self.rng.random() * 0.2
        pending, self.pending = self.pending, deque()
        self._abandon_at = math.inf
        for call in pending:
            if call.context is not _GREETING and call.context is not _LOGIN:
                self.lost(call)

    def _receive(self) -> None:
        socket = self.socket
        assert socket is not None
        self._inbox += socket.recv()
        while len(self._inbox) >= 4:
            size = 4 + int.from_bytes(self._inbox[:4], "big")
            if len(self._inbox) < size:
                break
            frame = bytes(self._inbox[:size])
            del self._inbox[:size]
            self._answer(frame)
            if self.socket is not socket:
                return
        if socket.lost:
            self.world.note(f"{self.name} loses {socket.wire.number}")
            socket.close()
            self._gone()

    def _answer(self, frame: bytes) -> None:
        correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
        if not self.pending:
            raise Violation(f"{self.name}: a response {correlation_id} to nothing")
        call = self.pending.popleft()
        if correlation_id != call.correlation_id:
            raise Violation(
                f"{self.name}: responses out of order: {correlation_id} where {call.correlation_id} ({call.key.name}) is due"
            )
        self._set_patience()
        if call.key == ApiKey.END_TXNS:  # ours, not Kafka's
            _, body = own_apis.parse_response(frame)
        else:
            _, body = control.parse_response(call.key, call.version, frame)
        self.answers += 1
        self._mind_throttle(call, body)
        if call.context is _GREETING:
            self._greeted(body)
            return
        if call.context is _LOGIN:
            self._login_answered(body)
            return
        if call.sent_at > self._session_end:
            raise Violation(f"{self.name}: {call.key.name} was answered, and the session had ended before it was sent")
        self._idle_until = 0.0
        self.answered(call, body)
        if call.key in _PROMISES and call.fields.get("acks", -1) == -1:
            self.history.on_promise()

    def _mind_throttle(self, call: Call, body: Any) -> None:
        """An answer with a throttle time comes at once, and the next one when the time is over."""
        now = self.world.now
        if now < self._throttled_at_least_until - 0.001:
            raise Violation(f"{self.name}: {call.key.name} was answered before the throttle time was over")
        throttle_s = _throttle_s(body)
        self._throttled_before_until = self.throttled_until
        self._throttled_at_least_until = call.sent_at + throttle_s if throttle_s else 0.0
        self.throttled_until = now + throttle_s
        self.history.throttled += bool(throttle_s)

    def _greeted(self, body: Any) -> None:
        if body.error_code:
            raise Violation(f"{self.name}: ApiVersions says {body.error_code!r}")
        self._ranges = {int(api.api_key): (api.min_version, api.max_version) for api in body.api_keys}

    def _login_answered(self, body: Any) -> None:
        login = self._login
        assert login is not None
        login.answered(body)
        if login.refused:
            self.login_refused()
        elif login.done:
            # Counted from the broker's side the session ends earlier.
            self._renew_at = self._session_end = math.inf
            if login.lifetime_s:
                self._session_end = self.world.now + login.lifetime_s
                if self.rng.random() < 0.6:  # or the broker closes the connection in the end
                    self._renew_at = self.world.now + login.lifetime_s * (0.5 + 0.4 * self.rng.random())

    def login_refused(self) -> None:
        raise Violation(f"{self.name}: {self.account} is refused")

    # -- asking -------------------------------------------------------------------------------------------------------------

    def _call_at_the_door(self) -> Call | None:
        """What has to be asked and answered before anything else."""
        if self._ranges is None and not (self._logging_in and self._logs_in_first):
            software = {"client_software_name": "sim", "client_software_version": "1"}
            return Call(ApiKey.API_VERSIONS, software, _GREETING)
        if self.world.now >= self._renew_at and not self.pending and self.account is not None:
            self._renew_at = math.inf
            self._login = Login(self.name, self.account, self.rng)
        if self._logging_in:
            assert self._login is not None
            return Call(*self._login.request(), _LOGIN)
        return None

    def _ask(self) -> None:
        if self._waits_at_the_door:
            return
        call = self._call_at_the_door()
        if call is not None:
            self._put(call)
            return
        while (
            len(self.pending) < self.in_flight_most and self.world.now >= self._idle_until and self.socket is not None
        ):
            call = self.next_call()
            if call is None:
                if self._idle_until <= self.world.now:
                    self._idle_until = math.inf
                return
            self._put(call)
            if self.rng.random() < 0.3:
                return  # the next one in a step of its own

    def _put(self, call: Call) -> None:
        if call.context is _GREETING or call.context is _LOGIN:
            oldest = 1 if call.key == ApiKey.SASL_HANDSHAKE else 0
            call.version = self.rng.randint(oldest, NEWEST[call.key])
        elif call.exactly >= 0:
            call.version = call.exactly
        elif call.key != ApiKey.END_TXNS:
            assert self._ranges is not None
            oldest, newest = self._ranges[int(call.key)]
            oldest = max(oldest, 3) if call.key == ApiKey.PRODUCE else oldest
            call.version = self.rng.randint(oldest, min(newest, NEWEST[call.key]))
            if call.key == ApiKey.PRODUCE:
                call.version = max(call.version, 7)  # from here on batches may have any codec
        self._correlation += 1
        call.correlation_id = self._correlation
        call.sent_at = self.world.now
        call.sent_step = self.world.steps
        if call.key == ApiKey.END_TXNS:
            self._outbox += own_apis.request(call.correlation_id, self.name, **call.fields)
        else:
            self._outbox += control.encode_request(call.key, call.version, call.correlation_id, self.name, call.fields)
        if call.expects_answer:
            self.pending.append(call)
            self._set_patience()

    def _set_patience(self) -> None:
        # Counted from when the one before it was answered: requests are answered one after the other.
        if self.pending:
            call = self.pending[0]
            patience_s = call.patience_s if self.history.hurried else 10 * call.patience_s
            self._abandon_at = max(call.sent_at, self.world.now) + patience_s
        else:
            self._abandon_at = math.inf

    def _transmit(self) -> None:
        if self._outbox and self.socket is not None:
            sent = self.socket.send(self._outbox)
            del self._outbox[:sent]


def _throttle_s(body: Any) -> float:
    throttle_time = getattr(body, "throttle_time", None)
    return 0.0 if throttle_time is None else float(throttle_time.total_seconds())


_GREETING = object()
_LOGIN = object()
