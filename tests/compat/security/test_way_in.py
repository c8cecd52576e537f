"""Every client makes a topic, writes and reads with a group, over each protocol and with each mechanism that it has."""

import pytest

from tests.compat.conftest import new_name
from tests.compat.security.access import MECHANISMS, Access
from tests.compat.security.conftest import MUTUAL, Secured, access
from tests.compat.security.guests import GUESTS, VALUES, Guest

each_guest = pytest.mark.parametrize("guest", GUESTS, ids=lambda guest: guest.name)


def comes_in(guest: Guest, servers: str, way: Access) -> None:
    if reason := guest.missing(way):
        pytest.skip(reason)
    assert guest.come_in(servers, way, new_name("secure")) == VALUES


@each_guest
def test_plain(guest: Guest, servers: str) -> None:
    comes_in(guest, servers, Access("PLAINTEXT"))


@each_guest
@pytest.mark.parametrize("certificate", [False, True], ids=["without-certificate", "with-certificate"])
def test_tls(guest: Guest, secured: Secured, certificate: bool) -> None:
    listener = MUTUAL if certificate else "kafka+ssl"
    comes_in(guest, secured.servers(listener), access(secured, "SSL", certificate=certificate))


@each_guest
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_login(guest: Guest, secured: Secured, protocol: str, mechanism: str) -> None:
    listener = "kafka+sasl+ssl" if protocol == "SASL_SSL" else "kafka+sasl"
    comes_in(guest, secured.servers(listener), access(secured, protocol, mechanism))
