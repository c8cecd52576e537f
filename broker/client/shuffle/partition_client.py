"""The reader's side of one connection (Flink's PartitionRequestClient). All channels of the process that read from one address
share the connection, and their receiver ids distinguish them.

Used on the I/O thread only, except ``tell_credit`` and ``post``, which any thread may call. A client finds the channel
for a message, and the channel interprets the message; the sender of a message for an unknown channel is told to cancel.

Tests: tests/client/shuffle/reading/test_input_gate.py.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from broker.client.shuffle.connection import Connection
from broker.client.shuffle.errors import ProducerFailedError, RemoteTransportError, TransportError
from broker.client.shuffle.io_loop import IoLoop
from broker.client.shuffle.names import Address
from broker.client.shuffle.security import Tls
from protocol.shuffle.buffer_response import BufferResponse, BufferRow, ServerMessage
from protocol.shuffle.errors import PRODUCER_FAILED_EXCEPTION, ErrorResponse
from protocol.shuffle.ids import PARTITION_ID_BYTES, Generation
from protocol.shuffle.messages import (
    BacklogAnnouncement,
    encode_add_credit,
    encode_cancel_partition_request,
    encode_close_request,
)
from protocol.shuffle.writer_frames import encode_list_partitions


class Receiver(Protocol):
    """A channel as its connection sees it. The methods are called on the I/O thread and take the gate's lock themselves."""

    receiver: bytes

    def on_buffer(self, message: BufferResponse) -> None: ...

    def on_row(self, row: BufferRow) -> None: ...

    def on_backlog(self, backlog: int) -> None: ...

    def on_partition_not_found(self, message: str) -> None: ...

    def failed(self, error: Exception) -> None: ...

    def take_unannounced(self) -> int:
        """Return the credit to announce to the sender now."""


class PartitionClient:
    """The handler of one connection. Get a client with ``lease`` and give it back with ``release``."""

    def __init__(
        self,
        loop: IoLoop,
        key: object,
        address: Address,
        generation: Generation,
        max_payload: int,
        timeout: float,
        tls: Tls | None = None,
    ) -> None:
        self.generation = generation
        self.name = f"{address[0]}:{address[1]}"
        self._loop = loop
        self._key = key
        self._leases = 0
        self._channels: dict[bytes, Receiver] = {}
        self._credited: deque[Receiver] = deque()
        self._credit_scheduled = False
        self._error: TransportError | None = None  # why the connection was closed
        self._credit_waits = False  # until the connection has sent its output; implies ``_credit_scheduled``
        self._asked = False  # whether the peer was asked for an answer since its last message
        self._heard_at: float | None = None  # the time of the last message; None before the connection is made
        self._connection = Connection(loop, address, generation, max_payload, self, timeout, tls)

    @classmethod
    def lease(
        cls,
        loop: IoLoop,
        address: Address,
        generation: Generation,
        max_payload: int,
        timeout: float,
        tls: Tls | None = None,
    ) -> "PartitionClient":
        """The client for this address; a new one connects."""
        key = (address, generation, max_payload, tls)
        client = loop.clients.get(key)
        if not isinstance(client, PartitionClient):
            client = cls(loop, key, address, generation, max_payload, timeout, tls)
            loop.clients[key] = client
            client._connection.open()
        client._leases += 1
        return client

    def release(self) -> None:
        """Give a lease back. The last one closes the connection."""
        self._leases -= 1
        if self._leases == 0:
            self._forget()
            if not self._connection.is_closed:
                self._connection.send([encode_close_request()])
                self._connection.flush()
                self._connection.close()

    def _forget(self) -> None:
        if self._loop.clients.get(self._key) is self:
            del self._loop.clients[self._key]

    # -- called by gates ------------------------------------------------------------------------------------------

    def check_peer(self, waited_s: float, silence_max_s: float) -> None:
        """A reader has waited for ``waited_s`` without a buffer. After a third of ``silence_max_s`` the broker is
        asked; if nothing comes within ``silence_max_s``, the connection is lost for all its channels."""
        if self._heard_at is None:
            return
        silent_s = self._loop.now() - self._heard_at
        if waited_s * 3 >= silence_max_s and not self._asked:
            self._asked = True
            # Any request with a short answer will do: no such partition exists.
            self._connection.send([encode_list_partitions(0, "00" * PARTITION_ID_BYTES)])
        elif min(waited_s, silent_s) >= silence_max_s:
            silence = f"{self.name} has not answered for {silence_max_s:g} s"
            self._fail_all(RemoteTransportError(silence, self.name))

    # -- called by channels ---------------------------------------------------------------------------------------

    def add(self, channel: Receiver, request: bytes) -> None:
        """Send ``request``, and pass the answers to this channel."""
        if self._connection.is_closed:
            channel.failed(self._error or RemoteTransportError(f"the connection to {self.name} was lost", self.name))
            return
        self._channels[channel.receiver] = channel
        self._connection.send([request])

    def remove(self, channel: Receiver) -> None:
        """Cancel the channel's request, if it has one."""
        if self._channels.pop(channel.receiver, None) is not None:
            self._connection.send([encode_cancel_partition_request(channel.receiver)])

    def send(self, frame: bytes) -> None:
        self._connection.send([frame])

    def tell_credit(self, channel: Receiver) -> None:
        """From any thread, with its gate's lock held: the channel has credit that the sender does not know of."""
        self._credited.append(channel)
        if not self._credit_scheduled:
            self._credit_scheduled = True
            self._loop.call(self._announce)

    def post(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the I/O thread. May be called from any thread."""
        self._loop.call(callback)

    def _announce(self) -> None:
        """Send one AddCredit for each channel with all its new credit; later, if the connection has unsent output."""
        if self._connection.outgoing_bytes:
            self._credit_waits = True
            return
        self._credit_scheduled = False  # before the queue is read, so that a later ``tell_credit`` schedules again
        credited = self._credited
        frames = []
        while credited:
            channel = credited.popleft()
            credit = channel.take_unannounced()
            if credit:
                frames.append(encode_add_credit(channel.receiver, credit))
        if frames:
            self._connection.send(frames if len(frames) == 1 else [b"".join(frames)])

    def abandon(self, error: Exception) -> None:
        """The I/O loop calls this when a method of the client has raised ``error``: all its channels fail."""
        self._connection.abandon(error)

    # -- called by the connection ---------------------------------------------------------------------------------

    def connected(self) -> None:
        # The requests are queued already.
        self._heard_at = self._loop.now()

    def received(self, messages: list[ServerMessage]) -> None:
        self._heard_at = self._loop.now()
        self._asked = False
        channels = self._channels
        for message in messages:
            if type(message) is BufferResponse:
                channel = channels.get(message.receiver)
                if channel is None:
                    self._cancel(message.receiver)
                else:
                    channel.on_buffer(message)
            elif type(message) is BufferRow:
                channel = channels.get(message.receiver)
                if channel is None:
                    self._cancel(message.receiver)
                else:
                    channel.on_row(message)
            elif isinstance(message, BacklogAnnouncement):
                channel = channels.get(message.receiver)
                if channel is None:
                    self._cancel(message.receiver)
                else:
                    channel.on_backlog(message.backlog)
            elif isinstance(message, ErrorResponse):
                self._on_error(message)
            # All other messages are for writers, and are ignored here.

    def _cancel(self, receiver: bytes) -> None:
        """A message came for an unknown channel, which may have been released."""
        self._connection.send([encode_cancel_partition_request(receiver)])

    def _on_error(self, error: ErrorResponse) -> None:
        text = f"{error.class_name}: {error.message}" if error.message else error.class_name
        if error.receiver is None:
            self._fail_all(RemoteTransportError(f"fatal error at {self.name}: {text}", self.name, error.class_name))
            return
        channel = self._channels.get(error.receiver)
        if channel is None:
            return
        if error.class_name.endswith(".PartitionNotFoundException"):
            channel.on_partition_not_found(error.message or "")
            return
        if error.class_name == PRODUCER_FAILED_EXCEPTION:
            failure: RemoteTransportError = ProducerFailedError(
                error.message or "the producer has failed", self.name, error.class_name
            )
        else:
            failure = RemoteTransportError(f"error at {self.name}: {text}", self.name, error.class_name)
        channel.failed(failure)

    def _fail_all(self, error: TransportError) -> None:
        self._error = error
        self._forget()
        self._connection.close()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.failed(error)

    def drained(self) -> None:
        if self._credit_waits:
            self._credit_waits = False
            self._announce()

    def closed(self, error: TransportError) -> None:
        self._fail_all(error)
