"""Addresses as people write them: ``host:port``. Pure.

Apart from the listeners' URLs (``config/listener.py``), because commands need no more than this: all settings of a broker take a
tenth of the CPU of a small command to import.

Tests: tests/config/test_listener.py.
"""

import re

from broker.errors import ConfigError

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/?#@\s]+)):(?P<port>\d{1,5})")


def parse_address(text: str, where: str) -> tuple[str, int]:
    """(host, port) of ``host:port``; an IPv6 address is in brackets. ``where`` names the parsed text in the
    ConfigError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"Write the address to advertise in {where} as host:port: it is {text!r}.")
    return match["v6"] or match["host"], int(match["port"])
