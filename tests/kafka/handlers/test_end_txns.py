"""EndTxns over a socket, and how a client finds it."""

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import own_apis
from protocol.kafka.messages.own_apis import EndTxnsResponse, Member
from tests.kafka.handlers.group_client import new_group
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.txn_client import Me, add_offsets, add_partitions, begin, commit_offsets, fetch, write

COMMITTED = 1


def end_together(kafka: Kafka, *producers: Me, commit: bool = True) -> EndTxnsResponse:
    correlation_id, answer = own_apis.parse_response(
        kafka.exchange(own_apis.request(7, "test", [Member(*producer) for producer in producers], commit))
    )
    assert correlation_id == 7
    return answer


DONE = EndTxnsResponse(0, ErrorCode.none, -1)


@pytest.mark.parametrize("commit", [True, False])
def test_several_producers_transactions_are_ended_together(kafka: Kafka, commit: bool) -> None:
    topic, group = kafka.topic(), new_group()
    producers = [begin(kafka) for _ in range(3)]
    for producer in producers[:2]:
        assert add_partitions(kafka, producer, topic) == [ErrorCode.none]
        assert write(kafka, producer, topic) == ErrorCode.none
    add_offsets(kafka, producers[0], group)
    assert commit_offsets(kafka, producers[0], group, topic, 5) == ErrorCode.none
    size, _, stable, _ = fetch(kafka, topic, COMMITTED)
    assert (size, stable) == (0, 0)
    for _ in range(2):  # the second time as if the answer was lost
        assert end_together(kafka, *producers, commit=commit) == DONE
    _, end, stable, aborted = fetch(kafka, topic, COMMITTED)
    assert end == stable == 4
    assert aborted == ([] if commit else [(producer.producer_id, n) for n, producer in enumerate(producers[:2])])
    offset = kafka.inside.catalogue.load_offsets()
    assert [one.offset for one in offset if one.group == group] == ([5] if commit else [])


def test_one_that_is_fenced_leaves_all_open(kafka: Kafka) -> None:
    topic = kafka.topic()
    producers = [begin(kafka), begin(kafka)]
    for producer in producers:
        add_partitions(kafka, producer, topic)
    old = producers[1]._replace(epoch=producers[1].epoch + 1)
    assert end_together(kafka, producers[0], old) == EndTxnsResponse(0, ErrorCode.producer_fenced, 1)
    assert write(kafka, producers[0], topic) == ErrorCode.none
    assert end_together(kafka, *producers) == DONE


def test_empty_or_repeated_producers_are_an_invalid_request(kafka: Kafka) -> None:
    me = begin(kafka)
    for producers in ((), (me, me), (me, me._replace(epoch=9))):
        assert end_together(kafka, *producers) == EndTxnsResponse(0, ErrorCode.invalid_request, -1)


@pytest.mark.parametrize("version", range(5))
def test_end_txns_is_advertised_as_a_feature_only(kafka: Kafka, version: int) -> None:
    software = {"client_software_name": "a", "client_software_version": "1"} if version >= 3 else {}
    answer = kafka.ask(ApiKey.API_VERSIONS, version, **software)
    assert ApiKey.END_TXNS not in {key.api_key for key in answer.api_keys}
    features = {one.name: (one.min_version, one.max_version) for one in getattr(answer, "supported_features", ())}
    ours = {name: levels for name, levels in features.items() if name.startswith("reactor.")}
    assert ours == ({"reactor.end_txns": (1, 1), "reactor.backup": (1, 1)} if version >= 3 else {})
    assert not ours.keys() & {one.name for one in getattr(answer, "finalized_features", ())}
