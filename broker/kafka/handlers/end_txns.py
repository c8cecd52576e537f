"""EndTxns (20000): commit or abort the transactions of several producers by one decision. Not one of Kafka's APIs.

Answered, as EndTxn is, when every marker is durable and the group offsets are committed.
"""

from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import may
from broker.kafka.context import KafkaContext
from broker.kafka.transactions.transaction import Claim
from broker.network.service import Outbox
from broker.network.work import REQUEST_ENTRIES_MAX
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import own_apis


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    parsed = own_apis.parse_request(request.body, REQUEST_ENTRIES_MAX)

    def reply(error: ErrorCode, index: int) -> None:
        if error:
            context.errors.add(API.label, error)
        outbox.send(request, [own_apis.response(request.correlation_id, error, index)])

    write, kind = Operation.WRITE, ResourceType.TRANSACTIONAL_ID
    for index, member in enumerate(parsed.members):
        if not may(context, request.connection, write, kind, member.transactional_id):
            reply(ErrorCode.transactional_id_authorization_failed, index)
            return
    members = [(member.transactional_id, Claim(member.producer_id, member.producer_epoch)) for member in parsed.members]
    context.transactions.end_together(members, parsed.committed, reply)


API = Api(
    key=ApiKey.END_TXNS,
    min_version=own_apis.MIN_VERSION,
    max_version=own_apis.MAX_VERSION,
    handle_raw=_handle,
    feature=(own_apis.FEATURE, own_apis.FEATURE_LEVEL),
)
