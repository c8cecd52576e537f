"""Who calls over HTTP: whose password is taken, and which listener says so."""

import base64
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from broker.config import load
from broker.network.service import Peer
from broker.network.work import Work
from broker.security.client_quotas import Entity, Kind
from broker.security.principal import ANONYMOUS
from broker.server import BrokerServer
from broker.web.callers import Callers, open_callers
from broker.web.routes import FORBIDDEN, TOO_MANY, UNAUTHORIZED, Answer, Call, HttpError, Route, json_answer
from tests.storage.helpers import HandClock


def server(sasl: str = "kafka+sasl://127.0.0.1:0", **settings: Any) -> BrokerServer:
    return BrokerServer(load(listeners=[sasl, "http://127.0.0.1:0"], **settings))


@pytest.fixture(params=["PLAIN", "SCRAM-SHA-512"])
def running(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[BrokerServer]:
    made = server(data_dir=str(tmp_path), sasl_enabled_mechanisms=request.param)
    made.start()
    try:
        from broker.security.credentials import make_row

        row = make_row("alice", "SCRAM-SHA-512", "secret", made.runtime.entropy)
        made.security.credentials.alter([row], [])
        yield made
    finally:
        made.stop()


def answer(callers: Callers, host: str, password: str = "secret") -> Answer:
    """What the client at ``host`` gets of a route that says who it is."""
    return asked(callers.protected(Route("GET", "/", lambda call: json_answer(str(call.principal)))), host, password)


def asked(route: Route, host: str = "127.0.0.1", password: str = "secret") -> Answer:
    proof = base64.b64encode(f"alice:{password}".encode()).decode()
    peer = Peer(host, 1, "http", ("127.0.0.1", 2))
    headers = {"authorization": f"Basic {proof}"}
    return route.handler(Call("GET", {}, {}, headers, b"", peer, ANONYMOUS, 0.0, Work(lambda: False)))


def test_a_password_is_taken_on_this_machine(running: BrokerServer) -> None:
    callers = callers_of(running)
    assert b'"User:alice"' == answer(callers, "127.0.0.1").body
    assert UNAUTHORIZED == answer(callers, "127.0.0.1", "wrong").status


def test_local_credentials_are_refused_over_plaintext_network(
    running: BrokerServer,
) -> None:
    callers = callers_of(running)
    refused = answer(callers, "192.0.2.1")
    assert FORBIDDEN == refused.status
    assert b"http_allow_unencrypted_logins" in refused.body
    # A browser would ask its user for a password.
    assert not [value for name, value in refused.headers if name == "www-authenticate"]
    assert 200 == answer(attrs.evolve(callers, with_tls={"http"}), "192.0.2.1").status


def test_passwords_are_taken_over_network_where_allowed(
    running: BrokerServer,
) -> None:
    config = attrs.evolve(running.config, http_allow_unencrypted_logins=True)
    callers = open_callers(config, config.listeners, running.security, running.runtime.clock)
    plain = "PLAIN" in running.config.sasl_enabled_mechanisms
    assert (200 if plain else FORBIDDEN) == answer(callers, "192.0.2.1").status


def test_http_takes_what_the_plaintext_listener_takes(running: BrokerServer) -> None:
    config, (asking, *others) = running.config, running.config.listeners
    plain = "PLAIN" in config.sasl_enabled_mechanisms
    for host, ssl, status in (("0.0.0.0", False, 200 if plain else FORBIDDEN), ("0.0.0.0", True, FORBIDDEN)):
        listeners = [attrs.evolve(asking, host=host, ssl=ssl), *others]
        callers = open_callers(config, listeners, running.security, running.runtime.clock)
        assert status == answer(callers, "192.0.2.1").status
        assert 200 == answer(callers, "127.0.0.1").status


def test_tokens_of_pulsar_are_as_passwords_are(tmp_path: Any) -> None:
    key = base64.b64encode(b"k" * 32).decode()
    made = server("pulsar+sasl://127.0.0.1:0", data_dir=str(tmp_path), pulsar_token_secret_key=key)
    made.start()
    try:
        assert FORBIDDEN == answer(callers_of(made), "192.0.2.1").status
        asking, *others = made.config.listeners
        listeners = [attrs.evolve(asking, host="0.0.0.0"), *others]
        callers = open_callers(made.config, listeners, made.security, made.runtime.clock)
        refused = answer(callers, "192.0.2.1")
        assert UNAUTHORIZED == refused.status
        assert [("www-authenticate", 'Bearer realm="broker"')] == list(refused.headers)
    finally:
        made.stop()


def test_no_authentication_without_login_listeners(running: BrokerServer) -> None:
    config = running.config
    others = [listener for listener in config.listeners if not listener.sasl]
    callers = open_callers(config, others, running.security, running.runtime.clock)
    assert b'"User:ANONYMOUS"' == answer(callers, "192.0.2.1").body


def callers_of(running: BrokerServer) -> Callers:
    return open_callers(running.config, running.config.listeners, running.security, running.runtime.clock)


def test_http_records_count_for_the_user_s_quota(running: BrokerServer) -> None:
    clock, quotas = HandClock(), running.security.quotas
    callers = attrs.evolve(callers_of(running), clock=clock)
    records = callers.protected(Route("GET", "/", lambda call: json_answer("x" * 5000), fetches=True))
    assert [200] * 3 == [asked(records).status for _ in range(3)]
    quotas.alter([(Entity(user="alice"), Kind.FETCH, 1000)])
    assert 200 == asked(records).status
    refused = asked(records)
    assert (TOO_MANY, (("retry-after", "5"),)) == (refused.status, refused.headers)
    assert b"consumer_byte_rate is used up: ask again in 5 s" in refused.body
    assert 200 == answer(callers, "127.0.0.1").status  # no records
    clock.now_s += 5
    assert 200 == asked(records).status
    clock.now_s += 5
    meter = quotas.meters("alice", "").fetch
    assert meter is not None
    meter.take(2000, clock.now_s)  # by another protocol
    assert TOO_MANY == asked(records).status


@pytest.mark.parametrize("fails", [False, True])
def test_http_request_time_counts_and_delays_answers(running: BrokerServer, fails: bool) -> None:
    clock, quotas = HandClock(), running.security.quotas
    callers = attrs.evolve(callers_of(running), clock=clock)

    def work(call: Call) -> Answer:
        clock.now_s += 0.01
        if fails:
            raise HttpError(404, "no")
        return json_answer(1)

    def delay_s() -> float:
        try:
            return asked(route).delay_s
        except HttpError as error:
            return error.delay_s

    route = callers.protected(Route("GET", "/", work))
    assert delay_s() == 0
    quotas.alter([(Entity(user="alice"), Kind.REQUEST, 1)])
    assert 0 < delay_s() < delay_s() <= quotas.windows.length_s
    assert delay_s() == quotas.windows.length_s
