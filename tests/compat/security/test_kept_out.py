"""What each client is told when it is not let in; and that it is told, instead of trying for ever."""

from pathlib import Path

import attrs
import pytest

from tests import certificates
from tests.compat.security.access import Access
from tests.compat.security.conftest import MUTUAL, PASSWORD, PLAIN_ONLY, Secured, access
from tests.compat.security.guests import GUESTS, Guest
from tests.process.broker_process import BrokerProcess

each_guest = pytest.mark.parametrize("guest", GUESTS, ids=lambda guest: guest.name)
LOGIN, LOGIN_TLS, TLS = "kafka+sasl", "kafka+sasl+ssl", "kafka+ssl"


def kept_out(guest: Guest, servers: str, way: Access) -> str:
    if reason := guest.missing(way):
        pytest.skip(reason)
    said = guest.refused(servers, way)
    assert PASSWORD not in said
    return said.lower()


def says_why(said: str) -> bool:
    """kafka-python and aiokafka log the reason, and raise that they could not bootstrap. Our own client lists what is offered."""
    return any(word in said for word in ("mechanism", "authenticat", "unable to bootstrap", "it offers"))


@each_guest
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"user": "nobody"}], ids=["password", "user"])
def test_wrong_password_or_user(guest: Guest, secured: Secured, mechanism: str, wrong: dict[str, str]) -> None:
    way = attrs.evolve(access(secured, "SASL_PLAINTEXT", mechanism), **wrong)
    assert says_why(kept_out(guest, secured.servers(LOGIN), way))


@each_guest
def test_a_mechanism_that_this_listener_does_not_offer(guest: Guest, secured: Secured) -> None:
    way = access(secured, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    assert says_why(kept_out(guest, secured.servers(PLAIN_ONLY), way))


@each_guest
@pytest.mark.parametrize("what", ["expired", "audience", "noise"])
def test_a_bad_token(guest: Guest, secured: Secured, what: str) -> None:
    token = {
        "expired": secured.token(lifetime_s=-3600),
        "audience": secured.token(audience="another"),
        "noise": "e30.e30.e30",
    }[what]
    way = attrs.evolve(access(secured, "SASL_SSL", "OAUTHBEARER"), token=token)
    kept_out(guest, secured.servers(LOGIN_TLS), way)


@each_guest
def test_no_certificate_where_one_is_required(guest: Guest, secured: Secured) -> None:
    kept_out(guest, secured.servers(MUTUAL), access(secured, "SSL"))


@each_guest
@pytest.mark.parametrize("identity", ["expired", "untrusted"])
def test_a_bad_certificate_of_the_client(guest: Guest, secured: Secured, identity: str, tmp_path: Path) -> None:
    files = getattr(certificates, identity)("alice").write(tmp_path, "bad")
    way = attrs.evolve(access(secured, "SSL"), certificate=files.certificate, key=files.key)
    kept_out(guest, secured.servers(MUTUAL), way)


@each_guest
def test_a_broker_that_the_client_does_not_trust(guest: Guest, secured: Secured, tmp_path: Path) -> None:
    other = certificates.authority("another")
    (tmp_path / "ca.crt").write_text(other.pem)
    kept_out(guest, secured.servers(TLS), attrs.evolve(access(secured, "SSL"), trust=tmp_path / "ca.crt"))


@each_guest
@pytest.mark.parametrize("identity", ["expired", "other_host"])
def test_a_broker_with_a_bad_certificate(guest: Guest, secured: Secured, identity: str, tmp_path: Path) -> None:
    files = getattr(certificates, identity)().write(tmp_path, "server")
    settings = [f"ssl_keystore_location={files.both}"]
    with BrokerProcess(tmp_path, *settings, more_listeners=["kafka+ssl://127.0.0.1:0"]) as broker:
        kept_out(guest, broker.addresses[TLS].replace("127.0.0.1", "localhost"), access(secured, "SSL"))
        assert broker.stop() == 0


@each_guest
def test_plaintext_to_a_port_of_tls(guest: Guest, secured: Secured) -> None:
    kept_out(guest, secured.servers(TLS), Access("PLAINTEXT"))


@each_guest
def test_tls_to_a_port_of_plaintext(guest: Guest, secured: Secured) -> None:
    kept_out(guest, secured.process.address, access(secured, "SSL"))


@each_guest
def test_no_login_where_one_is_asked_for(guest: Guest, secured: Secured) -> None:
    kept_out(guest, secured.servers(LOGIN), Access("PLAINTEXT"))
