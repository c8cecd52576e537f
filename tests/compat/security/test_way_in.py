"""Every client makes a topic, writes and reads with a group, over each protocol and with each mechanism that it has."""

import pytest

from tests.compat.conftest import new_name
from tests.compat.security.access import MECHANISMS, Access
from tests.compat.security.conftest import MUTUAL, Secured, access
from tests.compat.security.guests import VALUES, Guest, each


def all_come_in(servers: str, way: Access) -> None:
    assert {"kafka-python", "confluent-kafka"} <= each(way, lambda guest: come_in(guest, servers, way)).keys()


def come_in(guest: Guest, servers: str, way: Access) -> None:
    assert VALUES == guest.come_in(servers, way, new_name("secure"))


def test_plain(servers: str) -> None:
    all_come_in(servers, Access("PLAINTEXT"))


@pytest.mark.parametrize("certificate", [False, True], ids=["without-certificate", "with-certificate"])
def test_tls(secured: Secured, certificate: bool) -> None:
    listener = MUTUAL if certificate else "kafka+ssl"
    all_come_in(secured.servers(listener), access(secured, "SSL", certificate=certificate))


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_login(secured: Secured, protocol: str, mechanism: str) -> None:
    listener = "kafka+sasl+ssl" if protocol == "SASL_SSL" else "kafka+sasl"
    all_come_in(secured.servers(listener), access(secured, protocol, mechanism))
