"""Addresses in one spelling."""

import pytest

from broker.security.acl import canonical_host


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("FE80::A", "fe80::a"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("*", "*"),
        ("", ""),
        ("localhost", "localhost"),
        ("10.0.0.01", "10.0.0.01"),
    ],
)
def test_the_spelling_of_an_address(text: str, expected: str) -> None:
    assert expected == canonical_host(text)
