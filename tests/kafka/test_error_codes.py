"""Every refusal has a code of Kafka's, and the code that it had when the storage still raised Kafka's codes itself."""

from collections.abc import Iterator

import pytest

from broker.config.setting import InvalidSetting
from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.checks import error_fields
from broker.kafka.error_codes import CODES, code_of
from broker.storage import refusals
from protocol.kafka.errors import ErrorCode
from tests.loops import loop_over

# Refusals of other services, which Kafka's handlers never see, and of expressions and the backup, whose callers have their codes.
# Other tests of the same process may have imported them.
OF_OTHERS = (
    *("broker.pulsar.", "broker.delivery.", "broker.http.", "broker.web.routes"),
    *("broker.expressions", "broker.storage.backup."),
)


def kinds(base: type[Refusal]) -> Iterator[type[Refusal]]:
    """All subclasses that Kafka's handlers may meet, except RequestError: that one has its code with it."""
    for kind in base.__subclasses__():
        module = kind.__module__
        if kind is not RequestError and module.startswith("broker.") and not module.startswith(OF_OTHERS):
            yield kind
            yield from kinds(kind)


def an_instance(kind: type[Refusal]) -> Refusal:
    return refusals.KeylessRecords([3]) if kind is refusals.KeylessRecords else kind("It cannot be done.")


def test_every_refusal_has_a_code_and_vice_versa() -> None:
    assert set(kinds(Refusal)) == CODES.keys()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (InvalidSetting, 40),
        (refusals.LogEnded, 44),
        (refusals.UnknownTopic, 3),
        (refusals.TopicExists, 36),
        (refusals.InvalidTopicName, 17),
        (refusals.InvalidPartitionCount, 37),
        (refusals.OffsetOutOfRange, 1),
        (refusals.CorruptBatch, 2),
        (refusals.InvalidBatch, 87),
        (refusals.KeylessRecords, 87),
        (refusals.InvalidTimestamp, 32),
        (refusals.BatchTooLarge, 10),
        (refusals.BatchesTooLarge, 18),
        (refusals.OldProducerEpoch, 47),
        (refusals.OutOfOrderSequence, 45),
        (refusals.InvalidTransactionState, 48),
    ],
)
def test_the_codes_on_the_wire_are_kafka_s(kind: type[Refusal], code: int) -> None:
    assert code_of(an_instance(kind)) == code


@loop_over("kind", list(CODES))
def test_a_reply_has_the_code_and_the_message(kind: type[Refusal]) -> None:
    refusal = an_instance(kind)
    assert error_fields(refusal) == (CODES[kind], refusal.message)


def test_refusal_without_message_is_named_after_its_code() -> None:
    assert error_fields(refusals.UnknownTopic()) == (3, "unknown topic or partition")


def test_a_service_s_own_refusal_brings_its_code() -> None:
    assert code_of(RequestError(ErrorCode.policy_violation, "no")) == ErrorCode.policy_violation


def test_any_machine_fault_is_a_storage_error() -> None:
    assert error_fields(StorageError("the disk is full")) == (ErrorCode.kafka_storage_error, "the disk is full")
