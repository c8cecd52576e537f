"""Kafka's protocol as a ``Service`` of the reactor: frames to requests, requests to their API's handler.

``KafkaSession`` runs on processors, ``KafkaService.handle`` on a processor (inline) or a handler thread.
"""

import struct
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.log import get_logger
from broker.network.service import Connection, Handover, Outbox, Peer, Request
from broker.network.work import BULK, REQUEST_ENTRIES_MAX, Abandoned, lane_of
from protocol.errors import ProtocolError, TooManyEntries
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control

log = get_logger("kafka")

_LENGTH = struct.Struct(">i").unpack_from
# The smallest request: key, version and correlation id.
_SMALLEST = 8
_NOTHING = memoryview(b"")
_BULK_HANDOVER = Handover(BULK)


class KafkaSession:
    """One Kafka connection. It has no state: a connection has one request in flight at a time."""

    in_flight_max = 1

    def __init__(self, apis: dict[int, Api]) -> None:
        self._apis = apis

    def frame_size(self, data: memoryview) -> int:
        if len(data) < 4:
            return 0
        (length,) = _LENGTH(data)
        if length < _SMALLEST:
            raise ProtocolError(f"a request of {length} bytes")
        return 4 + length  # type: ignore[no-any-return]

    def receive(self, frame: memoryview) -> Request:
        key, version, correlation_id, client_id, body_offset = parse_request_header(frame)
        api = self._apis.get(key)
        if api is None:
            raise ProtocolError(f"API key {key} is not served here")
        if not api.min_version <= version <= api.max_version and key != ApiKey.API_VERSIONS:
            raise ProtocolError(f"version {version} of {api.key.name} is not served here")
        request = KafkaRequest()
        request.api = api
        request.api_version = version
        request.correlation_id = correlation_id
        request.client_id = client_id
        request.body_offset = body_offset
        return request


class KafkaService:
    """The ``Service`` of all Kafka listeners."""

    def __init__(self, context: KafkaContext, apis: dict[int, Api]) -> None:
        """``apis``: those that are served, by key."""
        self._context = context
        self._apis = apis

    def connect(self, peer: Peer) -> KafkaSession:
        return KafkaSession(self._apis)

    def inline(self, request: Request) -> Any:
        assert isinstance(request, KafkaRequest)
        api = request.api
        size = len(request.frame) - request.body_offset
        if size <= api.inline_max_bytes:
            if api.prepare is not None:
                metering = self._context.metering
                try:
                    if metering is not None:
                        return metering.prepare(api.prepare, self._context, request)
                    return api.prepare(self._context, request)
                except TooManyEntries:
                    return _BULK_HANDOVER
            if api.inline:
                return None
        return Handover(lane_of(size, api.lane) if api.sized_by_bytes else api.lane)

    def handle(self, request: Request, outbox: Outbox, prepared: Any) -> None:
        assert isinstance(request, KafkaRequest)
        metering = self._context.metering
        if metering is not None:
            outbox = metering.begin(request, outbox)
        try:
            if request.api.handle_raw is not None:
                request.api.handle_raw(self._context, request, outbox, prepared)
            else:
                self._call(request, outbox)
        except ProtocolError as error:
            # The processor closes the connection for this only where it handles the request itself.
            log.info("protocol_violated", peer=request.connection.peer.host, api=request.api.key.name, error=str(error))
            outbox.close(request)
        except Abandoned:
            outbox.close(request)
        finally:
            if metering is not None:
                metering.end(outbox)

    def _call(self, request: KafkaRequest, outbox: Outbox) -> None:
        api = request.api
        assert api.handle is not None
        if api.lane is not None:
            request.work(self._context).checkpoint()  # it may have waited long in its lane
        body = control.parse_request(api.key, request.api_version, request.body, REQUEST_ENTRIES_MAX)
        # A call may be parked for minutes, as a JoinGroup is. The parsed body is a copy, so the frame is not kept until then.
        request.frame = _NOTHING
        call = Call(self._context, request, outbox, body)
        try:
            fields = api.handle(self._context, call)
        except RequestError as error:
            if api.on_error is None:
                raise
            fields = api.on_error(call, error)
        if fields is not None:
            call.reply(fields)

    def writable(self, connection: Connection) -> None:
        """Nothing to do: every byte sent is an answer."""

    def stopping(self, connection: Connection) -> None:
        if connection.data is not None:
            connection.data.give_up()

    def disconnected(self, connection: Connection) -> None:
        self._context.throttling.forget(connection)
        parked = connection.data  # a fetch that waits for records, or metadata that waits for topics
        if parked is not None:
            parked.abandon()
            connection.data = None
