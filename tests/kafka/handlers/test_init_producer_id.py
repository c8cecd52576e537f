"""InitProducerId: ids for idempotent producers."""

from typing import Any

import pytest

from broker.kafka.handlers.init_producer_id import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@pytest.fixture(scope="module")
def kafka() -> Any:
    with Kafka() as kafka:
        yield kafka


def ask(kafka: Kafka, version: int = API.max_version, **fields: Any) -> tuple[int, int, int]:
    """(error code, producer id, epoch)"""
    response = kafka.ask(
        ApiKey.INIT_PRODUCER_ID, version, **{"transactional_id": None, "transaction_timeout": -1, **fields}
    )
    return response.error_code, response.producer_id, response.producer_epoch


@all_versions
def test_every_producer_gets_a_new_id_and_epoch(kafka: Kafka, version: int) -> None:
    answers = [ask(kafka, version) for _ in range(3)]
    assert [(ErrorCode.none, 0)] * 3 == [(code, epoch) for code, _, epoch in answers]
    assert len({producer_id for _, producer_id, _ in answers}) == 3
    assert all(producer_id >= 0 for _, producer_id, _ in answers)


def test_producer_ids_are_not_reused_after_a_restart(tmp_path: Any) -> None:
    with Kafka(data_dir=str(tmp_path)) as kafka:
        before = {ask(kafka)[1] for _ in range(3)}
    with Kafka(data_dir=str(tmp_path)) as kafka:
        after = {ask(kafka)[1] for _ in range(3)}
    assert len(before | after) == 6


@pytest.mark.parametrize("version", range(3, API.max_version + 1))
def test_producer_with_an_id_gets_a_new_one(kafka: Kafka, version: int) -> None:
    _, first, epoch = ask(kafka, version)
    code, second, new_epoch = ask(kafka, version, producer_id=first, producer_epoch=epoch)
    assert (ErrorCode.none, 0) == (code, new_epoch)
    assert first != second


@pytest.mark.parametrize("half", [{"producer_id": 5}, {"producer_epoch": 5}], ids=str)
def test_half_of_an_id_is_refused(kafka: Kafka, half: dict[str, int]) -> None:
    assert ask(kafka, **half) == (ErrorCode.invalid_request, -1, -1)


@all_versions
def test_transactional_id_keeps_producer_id_and_bumps_epoch(kafka: Kafka, version: int) -> None:
    fields = {"transactional_id": f"orders {version}", "transaction_timeout": 60_000}
    _, first, epoch = ask(kafka, version, **fields)
    assert epoch == 0
    assert ask(kafka, version, **fields) == (ErrorCode.none, first, 1)


@pytest.mark.parametrize("version", range(3, API.max_version + 1))
def test_who_is_not_the_present_producer_is_fenced(kafka: Kafka, version: int) -> None:
    fields = {"transactional_id": f"payments {version}", "transaction_timeout": 60_000}
    _, producer_id, epoch = ask(kafka, version, **fields)
    fenced = ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch
    assert ask(kafka, version, **fields, producer_id=producer_id, producer_epoch=epoch + 5) == (fenced, -1, -1)
    bumped = ask(kafka, version, **fields, producer_id=producer_id, producer_epoch=epoch)
    assert bumped == (ErrorCode.none, producer_id, 1)


def test_a_timeout_longer_than_the_brokers_is_refused(kafka: Kafka) -> None:
    answer = ask(kafka, transactional_id="orders", transaction_timeout=900_001)
    assert answer == (ErrorCode.invalid_transaction_timeout, -1, -1)


def test_an_empty_transactional_id_is_refused(kafka: Kafka) -> None:
    assert ask(kafka, transactional_id="") == (ErrorCode.invalid_request, -1, -1)
