"""AlterUserScramCredentials (51): add, replace and delete credentials. The client sends values computed from the password, so the
password itself never reaches the broker.

A user with an error keeps all its credentials. The changes of the other users are made together, or none of them.
"""

from collections.abc import Mapping
from typing import Any

from broker.errors import RequestError, StorageError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_fields
from broker.kafka.context import KafkaContext
from broker.kafka.logins import NAMES
from broker.log import get_logger
from broker.metadata.catalogue import CredentialRow
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from broker.security.acl_authorizer import printable
from broker.security.credentials import UnacceptableCredential, check, row_of
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.sasl.scram import salted_bytes

log = get_logger("kafka")

Refused = tuple[int, str]


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.ALTER, ResourceType.CLUSTER)
    errors: dict[str, Refused] = {}
    deleted: dict[str, tuple[str, str]] = {}
    put: dict[str, CredentialRow] = {}
    for number, item in enumerate([*call.body.deletions, *call.body.upsertions]):
        name = item.name
        if name in errors:
            continue
        if name in deleted or name in put:
            deleted.pop(name, None)
            put.pop(name, None)
            message = "A user credential cannot be altered twice in the same request"
            errors[name] = ErrorCode.duplicate_resource, message
            continue
        try:
            if number < len(call.body.deletions):
                deleted[name] = _deletion(context, item)
            else:
                put[name] = _upsertion(item)
        except RequestError as error:
            errors[name] = error_fields(error)
    altered = [*deleted, *put]
    if altered:
        try:
            context.credentials.alter(put.values(), deleted.values())
        except StorageError as error:
            errors.update(dict.fromkeys(altered, error_fields(error)))
            altered = []
        else:
            log.info("credentials_altered", by=printable(str(call.principal)), put=len(put), deleted=len(deleted))
    results = [*((name, (ErrorCode.none, None)) for name in altered), *errors.items()]
    return {
        "results": call.array(
            results, lambda result: {"user": result[0], "error_code": result[1][0], "error_message": result[1][1]}
        )
    }


def _mechanism(item: Any) -> str:
    """Raises RequestError."""
    if not item.name:
        raise RequestError(ErrorCode.unacceptable_credential, "Username must not be empty")
    mechanism = NAMES.get(item.mechanism)
    if mechanism is None:
        raise RequestError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    return mechanism


def _deletion(context: KafkaContext, item: Any) -> tuple[str, str]:
    mechanism = _mechanism(item)
    if not context.credentials.may_be_stored(item.name, mechanism):
        raise RequestError(ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist")
    return item.name, mechanism


def _upsertion(item: Any) -> CredentialRow:
    mechanism = _mechanism(item)
    try:
        check(item.name, item.iterations, item.salt)
    except UnacceptableCredential as error:
        raise RequestError(ErrorCode.unacceptable_credential, error.message) from None
    if len(item.salted_password) != salted_bytes(mechanism):
        raise RequestError(
            ErrorCode.unacceptable_credential, "The salted password has another length than its mechanism's"
        )
    return row_of(item.name, mechanism, bytes(item.salt), item.iterations, bytes(item.salted_password))


def _refused(call: Call, error: RequestError) -> Mapping[str, Any]:
    """The response has no error of its own: every named user gets it."""
    code, message = error_fields(error)
    names = dict.fromkeys(item.name for item in [*call.body.deletions, *call.body.upsertions])
    return {"results": call.array(names, lambda name: {"user": name, "error_code": code, "error_message": message})}


API = Api(
    key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    min_version=0,
    max_version=0,
    handle=handle,
    on_error=_refused,
    lane=ADMIN,
    settles=True,
)
