"""What must hold after every step: bounds, wake-ups, and at the end nothing left."""

import struct
from typing import Any

from broker.pulsar.connection import PulsarSession
from broker.storage.segments.segment import TXN_INDEX
from tests.sim.medium import Medium
from tests.sim.pulsar_scene import LARGEST_SLICE
from tests.sim.world import Process, Violation

# One request may exceed the pool, rounded up to its grain; the bytes that a processor has read already must go somewhere, one
# receive buffer a connection.
_READ_BYTES = 256 * 1024
_NEW_CONNECTIONS_MAX = 20


def check(server: Any, largest_response: int) -> None:
    """Bounds, which hold at any moment. Above the high-water mark nothing is begun, but begun work is finished: a response,
    or on a connection of Pulsar's a slice of deliveries."""
    sockets = server.sockets
    settings = sockets.settings
    for plane in sockets.planes:
        if len(plane.channel) > plane.channel.capacity:
            raise Violation(f"{len(plane.channel)} requests in a channel of {plane.channel.capacity}")
    connections = 0
    for processor in sockets.processors:
        connections += len(processor.connections)
        for connection in processor.connections:
            begun = largest_response + (LARGEST_SLICE if isinstance(connection.session, PulsarSession) else 0)
            if connection.outgoing_bytes > settings.high_water_bytes + begun:
                raise Violation(
                    f"{connection.outgoing_bytes} bytes wait for one client, of {settings.high_water_bytes}"
                )
        if len(processor._new) > _NEW_CONNECTIONS_MAX:
            raise Violation(f"{len(processor._new)} new connections wait for processor {processor.number}")
    in_use, most = sockets.memory.in_use, settings.queued_max_request_bytes
    if in_use > most + (connections + 1) * _READ_BYTES * 2:
        raise Violation(f"{in_use} bytes of request memory are in use, of {most}")
    if sockets.quotas.total > sockets.quotas.max_connections:
        raise Violation(f"{sockets.quotas.total} connections, of {sockets.quotas.max_connections}")


def check_wakeups(process: Process, server: Any) -> None:
    """Nothing can happen any more without time passing: then nobody may sleep on work."""
    threads = process.threads
    if any(not thread.at_rest for thread in threads):
        return  # frozen on the way to ring
    bodies = {id(thread.body): thread for thread in threads}
    for processor in server.sockets.processors:
        if id(processor) in bodies and not processor._poller.rung:
            work = {
                "inbox": processor._inbox,
                "new connections": processor._new,
                "runnable": processor._runnable,
                "disconnected": processor._table.disconnected,
                "room": processor._room,
                "dirty": processor._sending.dirty,
            }
            waiting = [name for name, each in work.items() if each]
            if waiting:
                raise Violation(f"lost wake-up: processor {processor.number} sleeps on {', '.join(waiting)}")


def check_aborted(medium: Medium) -> None:
    """An index of aborted transactions has a transaction for each ABORT marker, which comes after its records, in their order."""
    for path, inode in medium.walk():
        if path.endswith(TXN_INDEX):
            previous = -1
            for _, producer_id, first, last, _ in struct.iter_unpack(">hqqqq", inode.content):
                if not max(first, previous) < last:
                    raise Violation(f"{path} has producer {producer_id}, {first} to {last}, after {previous}")
                previous = last


def leftovers(server: Any) -> dict[str, Any]:
    """What clients that have gone have left behind."""
    sockets = server.sockets
    return {
        "connections": sum(len(processor.connections) for processor in sockets.processors),
        "counted connections": sockets.quotas.total,
        "request memory": sockets.memory.in_use,
        "requests": sum(len(plane.channel) for plane in sockets.planes),
        "watchers": sum(len(log.watchers.callbacks) for log in server.kafka.logs.partitions.values()),
    }
