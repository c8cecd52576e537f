"""A processor of the broker that runs only when it is stepped, on real TCP connections."""

import socket

from broker.config import BrokerConfig
from broker.network.expiry import Unsent
from broker.network.memory_pool import MemoryPool
from broker.network.new_connection import NewConnection
from broker.network.processor import Processor, ProcessorSettings
from broker.network.quota import ConnectionQuotas
from broker.network.request_channel import RequestChannel
from broker.network.service import Peer, Service
from broker.network.socket_server import ProcessorOutbox
from broker.runtime import Runtime
from broker.runtime.net import SystemSocket


def connected() -> tuple[socket.socket, socket.socket]:
    """A client, and the server's end, which does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    for each in (client, server):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.setblocking(False)
    return client, server


class SteppedProcessor:
    def __init__(self, config: BrokerConfig, runtime: Runtime, service: Service, listener: str) -> None:
        """``listener``: the name of the one from which its connections are."""
        self._service = service
        self._listener = listener
        self._quotas = ConnectionQuotas(1 << 30, 1 << 30, {}, 0)
        self._processor = Processor(
            0,
            settings=ProcessorSettings(600.0, config.outgoing_high_water_bytes, config.outgoing_low_water_bytes),
            poller=runtime.new_poller(),
            clock=runtime.clock,
            threads=runtime.threads,
            channel=RequestChannel(10),
            memory=MemoryPool(1 << 28),
            outbox=ProcessorOutbox(),
            quotas=self._quotas,
            on_room=lambda: None,
            unsent=Unsent(1 << 28),
        )
        self.step = self._processor.step

    def connect(self) -> socket.socket:
        """The client's end of a new connection, which the next step takes."""
        client, server = connected()
        self._quotas.open("127.0.0.1", self._listener)
        address = ("127.0.0.1", 1)
        peer = Peer(*address, self._listener, address)
        self._processor.offer(NewConnection(SystemSocket(server), peer, self._service, 1 << 20))
        return client
