"""A connection to one broker: asks for API versions, authenticates, exchanges requests in order, and bounds their time.

One thread uses it. Answers are received into one buffer, which grows to the largest answer and is reused: a view of an
answer is valid until the next answer is received. A connection closes itself after any error; its owner opens another
connection.

A broker may limit how long a login counts (KIP-368). The connection then logs in again before that time is over, with
the next request that is sent while no other is in flight; a caller that keeps requests in flight checks ``login_due``
and lets them end first.

A broker that is stopped or has lost power sends no answer and closes no connection. So the time of a
call bounds each wait in it: for a connection, for an answer, for a pause before another try (``Retry``; pauses grow).
The ``Limit`` of a ``Routing`` holds that time, and all its connections obey it.

Tests: tests/client/kafka/test_config_security.py,
tests/client/kafka/test_silent_broker.py,
tests/client/kafka/test_versions.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, TypeVar

from broker.client.kafka.config import Address, ClientConfig, authenticate
from broker.client.kafka.errors import (
    AuthenticationError,
    BrokerAnswerError,
    ConnectionLostError,
    KafkaClientError,
    LinkError,
    TimedOutError,
    UnreachableError,
    UnsupportedVersionError,
    code_name,
)
from broker.client.security_settings import Sasl
from broker.runtime.client_tls import TlsContext, TlsRefused
from broker.runtime.clock import Clock, SystemClock
from broker.runtime.dial import Dialled, dial, pause
from broker.runtime.disk import Buffer
from broker.runtime.entropy import SystemEntropy
from protocol.errors import ProtocolError
from protocol.frames import DEFAULT_MAX_FRAME
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control

T = TypeVar("T")

# An attempt with less time could only time out, and its error would hide the previous error.
_ATTEMPT_S = 0.01


class Limit:
    """``deadline``: the time (monotonic, s) at which the running call must end. Used by one thread, like its ``Routing``."""

    __slots__ = ("_clock", "deadline")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.deadline = inf

    def within(self, total_ms: float) -> "_Until":
        """A context manager that bounds the calls in its block to this time. A nested block cannot extend the outer one."""
        return self.until(self._clock.monotonic() + total_ms / 1000)

    def until(self, deadline: float) -> "_Until":
        return _Until(self, deadline)


class _Until:
    __slots__ = ("_deadline", "_limit", "_outer_deadline")

    def __init__(self, limit: Limit, deadline: float) -> None:
        self._limit, self._deadline = limit, deadline

    def __enter__(self) -> None:
        limit = self._limit
        self._outer_deadline = limit.deadline
        limit.deadline = min(self._outer_deadline, self._deadline)

    def __exit__(self, *_error: object) -> None:
        self._limit.deadline = self._outer_deadline


class Retry:
    """Call ``again`` after each failure: it pauses, or raises the failure if no time is left.

    The end of the time may also cut off an attempt, and its failure then only says so. If that attempt had less time than
    all earlier attempts, the previous failure is raised instead, because it says more.
    """

    def __init__(self, config: ClientConfig, clock: Clock, total_ms: float, limit: Limit) -> None:
        self._config = config
        self._clock = clock
        self._began = self._attempt_began = clock.monotonic()
        self.deadline = min(self._began + total_ms / 1000, limit.deadline)
        self._previous: KafkaClientError | None = None
        self._pause_s = config.retry_backoff_ms / 1000
        self.unknown_topic_answers = 0

    def begin_another(self) -> None:
        """The call has succeeded; the remaining time is for another call."""
        self._previous = None
        self.unknown_topic_answers = 0

    def again(self, failure: KafkaClientError) -> None:
        left_s = self._left_s(failure)
        pause(min(self._pause_s, left_s / 2))  # the other half is for the attempt
        self._previous = failure
        self._left_s(failure)  # the pause may have taken longer, on a busy machine
        self._attempt_began = self._clock.monotonic()
        self._pause_s = min(max(self._pause_s * 2, 0.001), self._config.retry_backoff_max_ms / 1000)

    def _left_s(self, failure: KafkaClientError) -> float:
        """The time left (s). Raises the failure if too little is left for another attempt."""
        now = self._clock.monotonic()
        left_s = self.deadline - now
        if left_s > _ATTEMPT_S:
            return left_s
        had_less_time = now - self._attempt_began < self._attempt_began - self._began
        if left_s <= 0 and had_less_time and self._previous is not None:
            raise self._previous
        raise failure

    def shorten(self, total_ms: float) -> None:
        """Give up ``total_ms`` from now, if that is earlier than before."""
        self.deadline = min(self.deadline, self._clock.monotonic() + total_ms / 1000)


SOFTWARE_NAME = "reactor-broker"

# Enough for all control requests; only fetches make it grow.
_FIRST_BUFFER_BYTES = 16 * 1024


class Connection:
    """Call ``open``, then ``ask``, or ``send`` and later ``receive`` to have several requests in flight."""

    def __init__(
        self,
        address: Address,
        config: ClientConfig,
        context: TlsContext | None = None,
        clock: Clock | None = None,
        max_frame: int = DEFAULT_MAX_FRAME,
        limit: Limit | None = None,
    ) -> None:
        """``limit``: the time limit of the calls that use the connection."""
        self.where = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        self.ranges: dict[int, tuple[int, int]] = {}
        self.features: dict[str, tuple[int, int]] = {}
        self.in_flight = 0
        self._address = address
        self._config = config
        self._context = context
        self._clock = clock or SystemClock()
        self._limit = limit or Limit(self._clock)
        self._max_frame = max_frame
        self._link: Dialled | None = None
        self._correlation_id = 0
        self._buffer = memoryview(bytearray(_FIRST_BUFFER_BYTES))
        self._served = False  # has answered anything after the first request
        self._login_again_at: float | None = None
        self._logged_in = False

    # Life -----------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._link is not None

    def open(self) -> None:
        """Raises UnreachableError, AuthenticationError or another KafkaClientError."""
        timeout_s = self.deadline(self._config.connect_timeout_ms) - self._clock.monotonic()
        try:
            self._link = dial(*self._address, timeout_s, self._context)
        except TimeoutError:
            raise UnreachableError(
                f"No broker answers at {self.where}: nothing came within {timeout_s:.3g} s."
            ) from None
        except TlsRefused as error:
            raise self._tls_refused(error) from None
        except OSError as error:
            raise UnreachableError(f"No broker answers at {self.where}: {_reason(error)}.") from None
        self.in_flight = 0
        self._served = False
        self._login_again_at, self._logged_in = None, False
        try:
            self._ask_versions()
        except (ConnectionLostError, BrokerAnswerError) as error:
            self.close()
            raise UnreachableError(
                f"No broker answers at {self.where}: what listens there gave no answer to the first request"
                f" ({error}) {self._doubt()}"
            ) from None
        try:
            self._authenticate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        link, self._link = self._link, None
        self.in_flight = 0
        if link is not None:
            link.close()

    def _tls_refused(self, error: TlsRefused) -> AuthenticationError:
        return AuthenticationError(f"No TLS connection to the broker at {self.where}: {error}.")

    def _doubt(self) -> str:
        """The most likely mistake if a server listens at the address and does not answer."""
        tls = self._config.tls
        if tls is None:
            return "Is security.protocol right? A listener with TLS needs SSL or SASL_SSL."
        if not tls.has_certificate:
            return "Is security.protocol right? A listener may also ask for a certificate: set ssl.keystore.location."
        return "Is security.protocol right?"

    def _login_doubt(self) -> str:
        """A listener with SASL answers the first request and closes at the second unless that is a login."""
        if self._served or not self.ranges or self._config.sasl is not None:
            return ""
        return " Does the listener ask for a login? Then set security.protocol to SASL_PLAINTEXT or SASL_SSL."

    # Requests -------------------------------------------------------------------------------------------------------

    def version(self, key: ApiKey, lowest: int, highest: int) -> int:
        """The highest version of an API that both sides support. Raises UnsupportedVersionError."""
        least, most = self.ranges.get(key, (0, -1))
        chosen = min(most, highest)
        if chosen < max(least, lowest):
            support = (
                f"serves versions {least} to {most} of {key.name}, and this client needs one of {lowest} to {highest}"
            )
            raise UnsupportedVersionError(
                f"The broker at {self.where} {support if most >= 0 else f'does not serve {key.name}'}.",
                ErrorCode.unsupported_version,
            )
        return chosen

    def ask(
        self, key: ApiKey, version: int, fields: Mapping[str, Any], timeout_ms: int | None = None, max_wait_ms: int = 0
    ) -> Any:
        """Send one request and return its answer as kio's dataclass. No other request may be in flight.

        ``max_wait_ms``: how long the broker may wait before it answers.
        """
        return self.exchange(
            key,
            lambda correlation_id: control.encode_request(key, version, correlation_id, self._config.client_id, fields),
            partial(control.parse_response, key, version),
            (timeout_ms or self._config.request_timeout_ms) + max_wait_ms,
        )

    def exchange(
        self,
        key: ApiKey,
        request: Callable[[int], Buffer],
        parse: Callable[[memoryview], tuple[int, T]],
        timeout_ms: float,
    ) -> T:
        """Send ``request`` of a correlation id; returns what ``parse`` makes of the answer. No other request may be in flight."""
        assert self.in_flight == 0
        deadline = self.deadline(timeout_ms)
        correlation_id = self.next_id()
        self.send([request(correlation_id)], deadline)
        frame = self.receive(deadline, key.name)
        try:
            answered, answer = parse(frame)
        except ProtocolError as error:
            raise self.unreadable(key.name, error) from None
        self.check_id(answered, correlation_id)
        return answer

    def next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def deadline(self, timeout_ms: float) -> float:
        """The time (monotonic, s) ``timeout_ms`` from now, or the end of the running call if that is earlier."""
        return min(self._clock.monotonic() + timeout_ms / 1000, self._limit.deadline)

    def send(self, parts: Sequence[Buffer], deadline: float) -> None:
        """Raises ConnectionLostError, TimedOutError; AuthenticationError if the client must log in again and fails."""
        if self._login_again_at is not None and self.login_due and not self.in_flight:
            self._authenticate()
        try:
            self._require_link().send(parts, deadline)
        except (OSError, TlsRefused) as error:
            raise self._broken(error, "takes no more requests: it took too long") from None
        self.in_flight += 1

    def receive(self, deadline: float, what: str = "a request") -> memoryview:
        """The frame of the next answer, including its length; valid until the next call. Raises as ``send`` does."""
        link = self._require_link()
        try:
            link.receive(self._buffer[:4], deadline)
            size = int.from_bytes(self._buffer[:4], "big", signed=True)
            if not 4 <= size <= self._max_frame:
                self.close()
                raise BrokerAnswerError(f"The broker at {self.where} sent an answer of {size} bytes.")
            if size + 4 > len(self._buffer):
                grown = memoryview(bytearray(max(size + 4, 2 * len(self._buffer))))
                grown[:4] = self._buffer[:4]
                self._buffer = grown
            link.receive(self._buffer[4 : size + 4], deadline)
        except (OSError, TlsRefused) as error:
            raise self._broken(error, f"did not answer {what} in time", self._login_doubt()) from None
        self.in_flight -= 1
        self._served = bool(self.ranges)
        return self._buffer[: size + 4]

    def answer_begins(self, deadline: float) -> bool:
        """Wait for the first bytes of an answer, or for the connection's end, which ``receive`` reports. False: the
        time is over."""
        return self._require_link().wait(deadline)

    def check_id(self, answered: int, expected: int) -> None:
        if answered != expected:
            self.close()
            raise BrokerAnswerError(
                f"The broker at {self.where} answered request {answered} where {expected} was next."
            )

    def unreadable(self, what: str, error: ProtocolError) -> BrokerAnswerError:
        """Close the connection and return the error for an answer that cannot be read."""
        self.close()
        return BrokerAnswerError(f"The answer of the broker at {self.where} to {what} cannot be read: {error}.")

    def _broken(self, error: OSError | TlsRefused, too_late: str, doubt: str = "") -> KafkaClientError:
        """Close the connection and return the error for what sending or receiving has raised."""
        self.close()
        if isinstance(error, TlsRefused):
            return self._tls_refused(error)
        if isinstance(error, TimeoutError):
            return TimedOutError(f"The broker at {self.where} {too_late}.")
        return ConnectionLostError(f"The connection to the broker at {self.where} broke: {_reason(error)}.{doubt}")

    def _require_link(self) -> Dialled:
        if self._link is None:
            raise ConnectionLostError(f"The connection to the broker at {self.where} is closed.")
        return self._link

    # Versions and authentication ----------------------------------------------------------------------------------------

    def _ask_versions(self) -> None:
        fields = {"client_software_name": SOFTWARE_NAME, "client_software_version": "1"}
        key, version = ApiKey.API_VERSIONS, 3
        deadline = self.deadline(self._config.request_timeout_ms)
        while True:
            request = control.encode_request(key, version, self.next_id(), self._config.client_id, fields)
            self.send([request], deadline)
            frame = self.receive(deadline, key.name)
            # A broker that does not know this version answers with this error in version 0 (KIP-511).
            refused = len(frame) >= 10 and int.from_bytes(frame[8:10], "big") == ErrorCode.unsupported_version
            if refused and version:
                version, fields = 0, {}
                continue
            break
        try:
            _, answer = control.parse_response(key, version, frame)
        except ProtocolError as error:
            raise self.unreadable(key.name, error) from None
        if answer.error_code:
            self.close()
            raise BrokerAnswerError(
                f"The broker at {self.where} answers {code_name(answer.error_code)} to the first request.",
                answer.error_code,
            )
        self.ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        self.features = {
            feature.name: (feature.min_version, feature.max_version)
            for feature in getattr(answer, "supported_features", ())
        }

    @property
    def login_due(self) -> bool:
        """Whether the client must log in again soon."""
        return self._login_again_at is not None and self._clock.monotonic() >= self._login_again_at

    def _authenticate(self) -> None:
        """Log in if the configuration demands it: as the first request, and again before the login ends."""
        sasl = self._config.sasl
        if sasl is None:
            return
        self._login_again_at = None
        again, self._logged_in = self._logged_in, False
        self._handshake(sasl, again)
        version = self.version(ApiKey.SASL_AUTHENTICATE, 0, 2)
        lifetime_s = 0.0

        def exchange(token: bytes) -> bytes:
            nonlocal lifetime_s
            try:
                answer = self.ask(ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": token})
            except LinkError:  # some brokers close instead of answering
                if again:
                    raise
                raise AuthenticationError(
                    f"The broker at {self.where} closed the connection while {sasl.who} logged in with"
                    f" {sasl.mechanism}."
                ) from None
            if answer.error_code:
                reason = f": {answer.error_message}" if answer.error_message else ""
                raise AuthenticationError(
                    f"The broker at {self.where} refuses {sasl.who} with {sasl.mechanism}{reason.rstrip('.')}.",
                    answer.error_code,
                )
            if version >= 1:
                lifetime_s = answer.session_lifetime.total_seconds()
            return bytes(answer.auth_bytes)

        try:
            authenticate(sasl, self.where, exchange)
        except BaseException:
            self.close()
            raise
        self._logged_in = True
        if lifetime_s > 0:
            # As Java's client: at 85 % to 95 % of the time, so that clients that connected together do not log in again
            # together.
            part = 0.85 + 0.1 * SystemEntropy.bytes(1)[0] / 255
            self._login_again_at = self._clock.monotonic() + part * lifetime_s

    def _handshake(self, sasl: Sasl, again: bool) -> None:
        """Announce the mechanism. Raises AuthenticationError if the broker refuses it; ``again``: a login is renewed."""
        no_logins = (
            f"The broker at {self.where} takes no logins on this listener: set security.protocol to"
            f" {'SSL' if self._config.tls else 'PLAINTEXT'}, or use the port of another listener."
        )
        if ApiKey.SASL_HANDSHAKE not in self.ranges:
            raise AuthenticationError(no_logins)
        version = self.version(ApiKey.SASL_HANDSHAKE, 1, 1)
        handshake = self.ask(ApiKey.SASL_HANDSHAKE, version, {"mechanism": sasl.mechanism})
        if handshake.error_code == ErrorCode.illegal_sasl_state:
            if again:  # Kafka does not renew a login within a second of the last; a new connection may log in
                self.close()
                raise ConnectionLostError(f"The broker at {self.where} does not renew the login of this connection.")
            raise AuthenticationError(no_logins, handshake.error_code)
        if handshake.error_code == ErrorCode.unsupported_sasl_mechanism:
            offered = ", ".join(handshake.mechanisms) or "none"
            raise AuthenticationError(
                f"The broker at {self.where} does not take {sasl.mechanism}; it offers {offered}.", handshake.error_code
            )
        if handshake.error_code:
            raise AuthenticationError(
                f"The broker at {self.where} refuses a login with {sasl.mechanism}: {code_name(handshake.error_code)}.",
                handshake.error_code,
            )


def _reason(error: OSError) -> str:
    text = error.strerror or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
