"""Every error of the client is the same after pickle, and names codes as Kafka does."""

import pickle

from broker.client.kafka import errors
from broker.client.kafka.errors import RETRIABLE, KafkaClientError, OffsetOutOfRangeError, code_name
from protocol.kafka.errors import ErrorCode
from tests.loops import loop_over

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KafkaClientError)]


@loop_over("kind", KINDS)
def test_error_survives_pickle(kind: type[KafkaClientError]) -> None:
    error = pickle.loads(pickle.dumps(kind("It did not work.", 6)))
    assert (kind, "It did not work.", 6) == (type(error), str(error), error.code)


def test_offset_out_of_range_names_the_partitions_bounds() -> None:
    error = pickle.loads(pickle.dumps(OffsetOutOfRangeError.of("orders", 3, 7, 10, 20)))
    assert ("orders", 3, 7, 10, 20) == (error.topic, error.partition, error.offset, error.log_start, error.end)
    assert "Offset 7 of orders-3 has been deleted: the partition has offsets 10 to 20 (exclusive)." == str(error)
    assert "does not exist yet" in str(OffsetOutOfRangeError.of("orders", 3, 21, 10, 20))


def test_codes_have_kafka_s_names() -> None:
    assert "NOT_LEADER_OR_FOLLOWER (6)" == code_name(ErrorCode.not_leader_or_follower)
    assert "error 12345" == code_name(12345)


def test_retriable_and_permanent_errors_are_disjoint() -> None:
    assert not RETRIABLE & {ErrorCode.none, ErrorCode.producer_fenced, ErrorCode.message_too_large}
