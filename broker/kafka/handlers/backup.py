"""Backup (20001): pin the files of a backup for `broker backup`, keep them pinned, release them. Not one of Kafka's APIs.

The files stay in the data directory: copying them takes access to the broker's disk. A client may nevertheless keep deleted
segments on the disk for as long as it renews, so it needs the right to alter the cluster.
"""

from broker.errors import Refusal, StorageError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.authorization import may
from broker.kafka.context import KafkaContext
from broker.network.service import Outbox
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from broker.storage.backup.backups import BackupTooSoon
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import backup
from protocol.kafka.messages.backup import Action, BackupResponse


def _handle(context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: None) -> None:
    request.work(context).checkpoint()  # it may have waited long in its lane
    parsed = backup.parse_request(request.body)
    answer = BackupResponse()
    if not may(context, request.connection, Operation.ALTER, ResourceType.CLUSTER):
        answer = BackupResponse(error=ErrorCode.cluster_authorization_failed)
    else:
        try:
            if parsed.action is Action.BEGIN:
                backup_id, directory = context.backups.begin()
                answer = BackupResponse(backup_id=backup_id, directory=directory)
            elif parsed.action is Action.RENEW:
                context.backups.renew(parsed.backup_id)
            else:
                context.backups.end(parsed.backup_id)
        except BackupTooSoon as error:
            answer = BackupResponse(error=ErrorCode.throttling_quota_exceeded, message=str(error))
        except Refusal as error:
            answer = BackupResponse(error=ErrorCode.invalid_request, message=str(error))
        except StorageError as error:
            answer = BackupResponse(error=ErrorCode.kafka_storage_error, message=str(error))
    outbox.send(request, [backup.response(request.correlation_id, answer)])


API = Api(
    key=ApiKey.BACKUP,
    min_version=backup.MIN_VERSION,
    max_version=backup.MAX_VERSION,
    handle_raw=_handle,
    lane=ADMIN,
    feature=(backup.FEATURE, backup.FEATURE_LEVEL),
)
