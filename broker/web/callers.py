"""Authentication, authorization and quotas of HTTP clients, for the routes of all services. Runs on handlers.

If a ``+sasl`` listener exists, HTTP authenticates clients, too, and the first such listener decides what is accepted: a
certificate of the http:// listener, a token (``Authorization: Bearer``), or a user with a password (``Authorization:
Basic``). Otherwise the principal comes from the client's certificate, or is ANONYMOUS. Health checks need no
authentication.

Over HTTP without TLS, anybody on the network can read a password or a token. So from other machines HTTP without TLS
accepts only credentials that a ``+sasl`` listener without TLS accepts as well, unless ``http_allow_unencrypted_logins``
is set. A listener that takes only SCRAM does not want passwords on the wire; since HTTP has no SCRAM, clients on this
machine and over TLS may still send a password.

Every request is authenticated anew. A failure is answered after a delay, like a failed login of the protocols.

A client's use counts for the quotas that its user has in all protocols: records for consumer_byte_rate, the time of
handling for request_percentage. While there is a debt of the former, records are refused (429). If a request leaves a
debt of the latter, its answer is delayed, for one window at most.

Tests: tests/web/test_callers.py, tests/pulsar/admin/test_rights.py, tests/http/api/test_rights.py.
"""

import base64
import binascii
from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import ceil

import attrs

from broker.config import BrokerConfig, Listener
from broker.config.open_listeners import is_loopback
from broker.config.security_settings import OAUTHBEARER, PLAIN
from broker.log import EventLimit, get_logger
from broker.runtime.clock import Clock
from broker.security.acl import CLUSTER_NAME, Authorizer, Operation, ResourceType
from broker.security.client_quotas import UNLIMITED, ClientQuotas, Kind
from broker.security.proofs import BASIC, TOKEN, Authentication, open_authentication
from broker.security.sasl.exchange import AuthenticationFailed, LoginCounters, LoginResult, NewExchange
from broker.security.sasl.mechanisms import PlainExchange
from broker.security.security import Security
from broker.web.routes import FORBIDDEN, TOO_MANY, UNAUTHORIZED, Answer, Call, HttpError, Route, json_answer

log = get_logger("http")

_failures = EventLimit()
_RETRY_AFTER_MAX_S = 3600  # a tiny quota throttles without end
_UNENCRYPTED = (
    "Without TLS, passwords and tokens are accepted from the broker's own machine only. Use an http+ssl:// listener, or set "
    "http_allow_unencrypted_logins."
)


@attrs.frozen(eq=False)
class Callers:
    """``authentication``: None if clients are not authenticated. ``private``: for clients on this machine and over
    TLS."""

    authentication: Authentication | None
    private: Authentication | None
    with_tls: Collection[str]  # the names of listeners
    authorizer: Authorizer | None  # None: everybody may do everything
    login_counters: LoginCounters
    quotas: ClientQuotas
    clock: Clock
    realm: str = "broker"

    def protected(self, route: Route) -> Route:
        """The same route for authenticated clients within their quotas. It must be a blocking route: authentication
        takes milliseconds."""
        assert route.blocking
        handler = partial(self._metered, route)
        return attrs.evolve(route, handler=handler if self.authentication is None else partial(self._handle, handler))

    def _metered(self, route: Route, call: Call) -> Answer:
        meters = self.quotas.meters(call.principal.name, "")
        if meters is UNLIMITED:
            return route.handler(call)
        began = self.clock.monotonic()
        user, fetch = call.principal.name, meters.fetch if route.fetches else None
        throttle_s = 0.0 if fetch is None else fetch.throttle_s(began)
        if throttle_s:
            self.quotas.count_throttle(Kind.FETCH, throttle_s)
            wait_s = ceil(min(throttle_s, _RETRY_AFTER_MAX_S))
            answer = json_answer(
                {"reason": f"The quota consumer_byte_rate is used up: ask again in {wait_s} s."}, TOO_MANY
            )
            return attrs.evolve(answer, headers=(("retry-after", str(wait_s)),))
        try:
            answer = route.handler(call)
        except HttpError as error:
            error.delay_s = self._count_time(user, began)
            raise
        if fetch is not None:
            fetch.take(len(answer.body), self.clock.monotonic())
        return attrs.evolve(answer, delay_s=max(answer.delay_s, self._count_time(user, began)))

    def _count_time(self, user: str, began: float) -> float:
        """The delay (s) of the answer."""
        now = self.clock.monotonic()
        return self.quotas.take(Kind.REQUEST, user, (now - began) * 100, now)

    def _handle(self, handler: Callable[[Call], Answer], call: Call) -> Answer:
        is_private = call.peer.listener in self.with_tls or is_loopback(call.peer.host)
        authentication = self.private if is_private else self.authentication
        assert authentication is not None
        try:
            method, proof = _proof(call.headers.get("authorization", ""))
            identity = authentication.authenticate(method, proof, call.principal)
        except AuthenticationFailed as error:
            self._note(call, error)
            return attrs.evolve(self._refusal(call, authentication), delay_s=authentication.delay_s)
        return handler(attrs.evolve(call, principal=identity.principal))

    def _refusal(self, call: Call, authentication: Authentication) -> Answer:
        assert authentication.exchanges is not None
        basic = PLAIN in authentication.exchanges
        if not (basic or OAUTHBEARER in authentication.exchanges or authentication.tokens):
            # A client that was asked to authenticate would send a password that anybody can read.
            return json_answer({"reason": _UNENCRYPTED}, FORBIDDEN)
        # A browser reacts to Basic by asking its user, even if a script has sent the request; the broker's page asks
        # better.
        is_script = "x-requested-with" in call.headers
        names = ("Bearer", "Basic") if basic and not is_script else ("Bearer",)
        schemes = tuple(("www-authenticate", f'{name} realm="{self.realm}"') for name in names)
        answer = json_answer({"reason": "The client has not proved who it is."}, UNAUTHORIZED)
        return attrs.evolve(answer, headers=schemes)

    def _note(self, call: Call, error: AuthenticationFailed) -> None:
        self.login_counters.count(call.peer.listener, "http", LoginResult.FAILED)
        unlogged = _failures.take(call.received_at)
        if unlogged is not None:
            log.warning(
                "authentication_failed",
                peer=call.peer.host,
                listener=call.peer.listener,
                mechanism="http",
                user=None if error.user is None else ascii(error.user[:100]),
                reason=error.reason,
                unlogged_before=unlogged,
            )

    # -- rights -------------------------------------------------------------------------------------------------------

    def may(
        self, call: Call, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME, *, audited: bool = False
    ) -> bool:
        """``audited``: a denial is logged. False where the request did not name the resource, so that a denial only hides it."""
        return self.authorizer is None or self.authorizer.allows(
            call.principal, call.peer.host, operation, kind, name, audited=audited
        )

    def require(self, call: Call, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raises HttpError (403)."""
        if not self.may(call, operation, kind, name, audited=True):
            resource = "the cluster" if kind is ResourceType.CLUSTER else f"the {kind.name.lower()} {name[:300]}"
            raise HttpError(FORBIDDEN, f"Not authorized to {operation.name.lower()} {resource}.")


def open_callers(
    config: BrokerConfig, listeners: Sequence[Listener], security: Security, clock: Clock, realm: str = "broker"
) -> Callers:
    """``listeners``: those that may decide what is accepted. Raises ConfigError."""
    login = next((each for each in listeners if each.sasl), None)
    authentication = private = None
    if login is not None:
        exchanges = security.mechanisms[login.name]
        authentication = private = open_authentication(config, login, exchanges, clock)
        if PLAIN not in exchanges and any(name != OAUTHBEARER for name in exchanges):
            passwords: dict[str, NewExchange] = {**exchanges, PLAIN: partial(PlainExchange, security.credentials)}
            private = attrs.evolve(authentication, exchanges=passwords)
        if not config.http_allow_unencrypted_logins:
            authentication = _without_what_tls_protects(authentication, listeners, security)
    with_tls = {listener.name for listener in config.listeners if listener.ssl}
    if config.control_listener is not None and config.control_listener.ssl:
        with_tls.add(config.control_listener.name)
    return Callers(
        authentication, private, with_tls, security.authorizer, security.logins, security.quotas, clock, realm
    )


def _without_what_tls_protects(
    authentication: Authentication, listeners: Sequence[Listener], security: Security
) -> Authentication:
    """The same, reduced to credentials that listeners without TLS accept from other machines already."""
    plaintext = [
        listener for listener in listeners if listener.sasl and not listener.ssl and not is_loopback(listener.host)
    ]
    accepted = {mechanism for listener in plaintext for mechanism in security.mechanisms[listener.name]}
    return attrs.evolve(
        authentication,
        exchanges={name: made for name, made in (authentication.exchanges or {}).items() if name in accepted},
        tokens=authentication.tokens if any(listener.scheme == "pulsar" for listener in plaintext) else None,
    )


def _proof(header: str) -> tuple[str, bytes]:
    """The method, by its name in Pulsar's protocol, and the proof. Raises AuthenticationFailed, without quoting it."""
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return TOKEN, rest.strip().encode("latin-1")
    if scheme.lower() == "basic":
        try:
            return BASIC, base64.b64decode(rest.strip().encode("latin-1"), validate=True)
        except (binascii.Error, ValueError):
            raise AuthenticationFailed("a header Authorization that is not in base64") from None
    return "none", b""
