"""Every client makes a topic, writes and reads with a group, over each protocol and with each mechanism that it has."""

import pytest

from tests.compat.conftest import new_name
from tests.compat.security.access import Access
from tests.compat.security.guests import GUESTS, VALUES, Guest


@pytest.mark.parametrize("guest", GUESTS, ids=lambda guest: guest.name)
def test_plain(guest: Guest, servers: str) -> None:
    access = Access("PLAINTEXT")
    if reason := guest.missing(access):
        pytest.skip(reason)
    assert guest.come_in(servers, access, new_name("secure")) == VALUES
