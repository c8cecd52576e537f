"""Ports for servers that begin to listen later, or again after they were killed."""

import socket
import sys
import weakref


def free_ports(number: int, owner: object) -> list[int]:
    """Of 127.0.0.1. As long as ``owner`` lives, the kernel gives them to nobody who binds port 0 or connects. Clients are refused
    until a server listens there, which has to set SO_REUSEADDR. Only Linux can do this; elsewhere they are just free."""
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        if sys.platform == "linux":
            weakref.finalize(owner, probe.close)
        else:
            probe.close()
    return ports
