"""What each client is told when it is not let in; and that it is told, instead of trying for ever."""

from pathlib import Path

import attrs
import pytest

from tests import certificates
from tests.compat.security.access import Access
from tests.compat.security.conftest import MUTUAL, PASSWORD, PLAIN_ONLY, Secured, access
from tests.compat.security.guests import each
from tests.process.broker_process import BrokerProcess

LOGIN, LOGIN_TLS, TLS = "kafka+sasl", "kafka+sasl+ssl", "kafka+ssl"


def kept_out(servers: str, way: Access) -> dict[str, str]:
    """What each client says."""
    said = each(way, lambda guest: guest.refused(servers, way))
    assert not any(PASSWORD in text for text in said.values())
    return {name: text.lower() for name, text in said.items()}


def told_why(servers: str, way: Access) -> None:
    """kafka-python and aiokafka log the reason, and raise that they could not bootstrap. Our own client lists what is offered."""
    words = ("mechanism", "authenticat", "unable to bootstrap", "it offers")
    assert {} == {
        name: text for name, text in kept_out(servers, way).items() if not any(word in text for word in words)
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"user": "nobody"}], ids=["password", "user"])
def test_wrong_password_or_user(secured: Secured, mechanism: str, wrong: dict[str, str]) -> None:
    way = attrs.evolve(access(secured, "SASL_PLAINTEXT", mechanism), **wrong)
    told_why(secured.servers(LOGIN), way)


def test_a_mechanism_that_this_listener_does_not_offer(secured: Secured) -> None:
    way = access(secured, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    told_why(secured.servers(PLAIN_ONLY), way)


@pytest.mark.parametrize("what", ["expired", "audience", "noise"])
def test_a_bad_token(secured: Secured, what: str) -> None:
    token = {
        "expired": secured.token(lifetime_s=-3600),
        "audience": secured.token(audience="another"),
        "noise": "e30.e30.e30",
    }[what]
    way = attrs.evolve(access(secured, "SASL_SSL", "OAUTHBEARER"), token=token)
    kept_out(secured.servers(LOGIN_TLS), way)


def test_no_certificate_where_one_is_required(secured: Secured) -> None:
    kept_out(secured.servers(MUTUAL), access(secured, "SSL"))


@pytest.mark.parametrize("identity", ["expired", "untrusted"])
def test_a_bad_certificate_of_the_client(secured: Secured, identity: str, tmp_path: Path) -> None:
    files = getattr(certificates, identity)("alice").write(tmp_path, "bad")
    way = attrs.evolve(access(secured, "SSL"), certificate=files.certificate, key=files.key)
    kept_out(secured.servers(MUTUAL), way)


def test_a_broker_that_the_client_does_not_trust(secured: Secured, tmp_path: Path) -> None:
    other = certificates.authority("another")
    (tmp_path / "ca.crt").write_text(other.pem)
    kept_out(secured.servers(TLS), attrs.evolve(access(secured, "SSL"), trust=tmp_path / "ca.crt"))


@pytest.mark.parametrize("identity", ["expired", "other_host"])
def test_a_broker_with_a_bad_certificate(secured: Secured, identity: str, tmp_path: Path) -> None:
    files = getattr(certificates, identity)().write(tmp_path, "server")
    settings = [f"ssl_keystore_location={files.both}"]
    with BrokerProcess(tmp_path, *settings, more_listeners=["kafka+ssl://127.0.0.1:0"]) as broker:
        kept_out(broker.addresses[TLS].replace("127.0.0.1", "localhost"), access(secured, "SSL"))
        assert broker.stop() == 0


def test_plaintext_to_a_port_of_tls(secured: Secured) -> None:
    kept_out(secured.servers(TLS), Access("PLAINTEXT"))


def test_tls_to_a_port_of_plaintext(secured: Secured) -> None:
    kept_out(secured.process.address, access(secured, "SSL"))


def test_no_login_where_one_is_asked_for(secured: Secured) -> None:
    kept_out(secured.servers(LOGIN), Access("PLAINTEXT"))
