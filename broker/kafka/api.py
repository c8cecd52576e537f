"""How an API of Kafka's plugs into the service.

Each module of ``broker.kafka.handlers`` exports ``API``. Most are *control* APIs: the body is parsed and the reply encoded by
``protocol.kafka.control``, and the handler maps a parsed request to the reply's fields. The few on the hot path are *raw*:
they get the request as it came and send bytes themselves.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from broker.errors import RequestError
from broker.network.service import Outbox, Peer, Request
from protocol.kafka import control
from protocol.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker

Fields = Mapping[str, Any]


class KafkaRequest(Request):
    """A request whose header has been read; the body is ``frame[body_offset:]``."""

    __slots__ = ("api", "api_version", "body_offset", "client_id", "correlation_id", "prepared")

    api: "Api"
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int
    prepared: Any  # what `Api.prepare` found out, for `Api.handle_raw` on the same thread; None after a hand-over

    @property
    def body(self) -> memoryview:
        return self.frame[self.body_offset :]


class Call:
    """A control request: the parsed body, and the one reply it is owed."""

    __slots__ = ("_outbox", "_replied", "_request", "body")

    def __init__(self, request: KafkaRequest, outbox: Outbox, body: Any) -> None:
        self._request = request
        self._outbox = outbox
        self._replied = False
        self.body = body

    @property
    def api_version(self) -> int:
        return self._request.api_version

    @property
    def client_id(self) -> str | None:
        return self._request.client_id

    @property
    def client_host(self) -> str:
        return self._request.connection.peer.host

    @property
    def peer(self) -> Peer:
        return self._request.connection.peer

    @property
    def connection(self) -> Any:
        """Identity of the connection, to tell calls of one from those of another."""
        return self._request.connection

    def reply(self, fields: Fields) -> None:
        """Answer. From any thread, once. An answer to a connection that is gone is dropped."""
        assert not self._replied, "a call was answered twice"
        self._replied = True
        request = self._request
        encoded = control.encode_response(request.api.key, request.api_version, request.correlation_id, fields)
        self._outbox.send(request, [encoded])


@attrs.frozen
class Api:
    """One API: which versions, and who answers.

    Exactly one of ``handle`` and ``handle_raw`` is given.

    ``handle(broker, call)`` returns the reply's fields, or None if it will call ``call.reply`` later, from any thread.
    A RequestError that leaves it becomes the reply ``on_error(call, error)``; without ``on_error``, closes the connection.
    ``inline``: ``handle`` is cheap and never blocks.

    ``handle_raw(broker, request, outbox)`` answers through the outbox. ``prepare(broker, request)`` says whether that is cheap
    and unblocking this time, and may leave in ``request.prepared`` what it worked out.
    """

    key: ApiKey
    min_version: int
    max_version: int
    handle: Callable[["KafkaBroker", Call], Fields | None] | None = None
    on_error: Callable[[Call, RequestError], Fields] | None = None
    inline: bool = False
    handle_raw: Callable[["KafkaBroker", KafkaRequest, Outbox], None] | None = None
    prepare: Callable[["KafkaBroker", KafkaRequest], bool] | None = None
    # Advertised instead of min_version where clients want to see a lower one than anybody uses.
    advertised_min: int | None = None
    # An API that Kafka does not have: name and level of the feature by which clients find it. ApiVersions does not list its key.
    feature: tuple[str, int] | None = None

    def __attrs_post_init__(self) -> None:
        assert (self.handle is None) != (self.handle_raw is None)

    @property
    def advertised(self) -> tuple[int, int]:
        """The range that ApiVersions tells."""
        return (self.min_version if self.advertised_min is None else self.advertised_min, self.max_version)
