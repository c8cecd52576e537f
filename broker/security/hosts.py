"""Addresses of clients in one spelling, so that an ACL's host can be compared with the client's as a text. Pure."""

import ipaddress


def canonical_host(text: str) -> str:
    """``0:0:0:0:0:0:0:1`` and ``::1`` are the same, and so are ``::ffff:10.0.0.1`` and ``10.0.0.1``, which a listener on ``::``
    may report for a client of IPv4. What is not an address is returned as it is."""
    if text == "*":
        return text
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
