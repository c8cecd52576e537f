"""The commands of transactions, all refused with NotAllowedError: this broker has no transactions for Pulsar's clients.

Tests: tests/pulsar/test_service.py.
"""

from functools import partial

from broker.pulsar.command import Call, Command, Type
from protocol.pulsar.pulsar_pb2 import CommandTcClientConnectResponse, ServerError, TxnResponse

_MESSAGE = "This broker has no transactions for Pulsar's clients."


def _refuse(response: int, call: Call) -> None:
    call.reply(
        response,
        TxnResponse(request_id=call.body.request_id, error=ServerError.NotAllowedError, message=_MESSAGE),
    )


def _refuse_coordinator(call: Call) -> None:
    call.reply(
        Type.TC_CLIENT_CONNECT_RESPONSE,
        CommandTcClientConnectResponse(
            request_id=call.body.request_id, error=ServerError.NotAllowedError, message=_MESSAGE
        ),
    )


TRANSACTIONS = (
    Command(Type.TC_CLIENT_CONNECT_REQUEST, _refuse_coordinator),
    *(
        Command(request, partial(_refuse, response))
        for request, response in (
            (Type.NEW_TXN, Type.NEW_TXN_RESPONSE),
            (Type.ADD_PARTITION_TO_TXN, Type.ADD_PARTITION_TO_TXN_RESPONSE),
            (Type.ADD_SUBSCRIPTION_TO_TXN, Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE),
            (Type.END_TXN, Type.END_TXN_RESPONSE),
            (Type.END_TXN_ON_PARTITION, Type.END_TXN_ON_PARTITION_RESPONSE),
            (Type.END_TXN_ON_SUBSCRIPTION, Type.END_TXN_ON_SUBSCRIPTION_RESPONSE),
        )
    ),
)
