"""ApiVersions: the APIs and versions that this broker serves. The first request of every client."""

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.network.service import Outbox
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import api_versions

_MAX_VERSION = 4


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    version = request.api_version
    if not 0 <= version <= _MAX_VERSION:
        # The client is newer than this broker. Version 0 is a form that every client knows, and tells it a version to try.
        own = {int(ApiKey.API_VERSIONS): context.api_ranges[ApiKey.API_VERSIONS]}
        reply = api_versions.response(request.correlation_id, 0, ErrorCode.unsupported_version, own)
    else:
        reply = api_versions.response(
            request.correlation_id, version, ErrorCode.none, context.api_ranges, features=context.features
        )
    outbox.send(request, [reply])


API = Api(
    key=ApiKey.API_VERSIONS,
    min_version=0,
    max_version=_MAX_VERSION,
    handle_raw=_handle,
    inline=True,
)
