"""Every error of the client is the same after pickle, and names codes as Kafka does."""

import pickle

from broker.client.kafka import errors
from broker.client.kafka.errors import RETRIABLE, KafkaClientError, OffsetOutOfRangeError, code_name
from protocol.kafka.errors import ErrorCode
from tests.loops import loop_over

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KafkaClientError)]


@loop_over("kind", KINDS)
def test_an_error_is_the_same_after_pickle(kind: type[KafkaClientError]) -> None:
    error = pickle.loads(pickle.dumps(kind("It did not work.", 6)))
    assert (kind, "It did not work.", 6) == (type(error), str(error), error.code)


def test_an_offset_out_of_range_says_where_the_partition_begins_and_ends() -> None:
    error = pickle.loads(pickle.dumps(OffsetOutOfRangeError.of("orders", 3, 7, 10, 20)))
    assert ("orders", 3, 7, 10, 20) == (error.topic, error.partition, error.offset, error.log_start, error.end)
    assert "Offset 7 of orders-3 has been deleted: the partition has offsets 10 to 20 (exclusive)." == str(error)
    assert "does not exist yet" in str(OffsetOutOfRangeError.of("orders", 3, 21, 10, 20))


def test_codes_have_kafka_s_names() -> None:
    assert "NOT_LEADER_OR_FOLLOWER (6)" == code_name(ErrorCode.not_leader_or_follower)
    assert "error 12345" == code_name(12345)


def test_what_can_be_tried_again_is_not_what_never_helps() -> None:
    assert not RETRIABLE & {ErrorCode.none, ErrorCode.producer_fenced, ErrorCode.message_too_large}
