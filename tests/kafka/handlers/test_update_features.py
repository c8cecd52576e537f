"""UpdateFeatures: Kafka's rules in every version, and the levels that clients read from then on."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.errors import StorageError
from broker.kafka.handlers.update_features import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions

UPGRADE, SAFE, UNSAFE = 1, 2, 3
NAME = "transaction.version"


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def told(kafka: Kafka) -> tuple[dict[str, int], int]:
    """The finalized levels and their epoch, as a client reads them."""
    answer = kafka.ask(ApiKey.API_VERSIONS, 4, client_software_name="test", client_software_version="1")
    return {
        feature.name: feature.max_version_level for feature in answer.finalized_features
    }, answer.finalized_features_epoch


def update(
    kafka: Kafka, *levels: tuple[str, int], kind: int = UPGRADE, version: int = 2, validate_only: bool = False
) -> Any:
    updates = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != UPGRADE}
        for name, level in levels
    ]
    return kafka.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=updates, validate_only=validate_only)


@pytest.mark.parametrize("version", versions(API))
def test_feature_is_lowered_and_raised_in_every_version(kafka: Kafka, version: int) -> None:
    levels, epoch = told(kafka)
    answer = update(kafka, ("share.version", 0), kind=SAFE, version=version)
    assert ErrorCode.none == answer.error_code
    assert ["share.version"] * (version < 2) == [one.feature for one in getattr(answer, "results", ())]
    lowered = {name: level for name, level in levels.items() if name != "share.version"}
    assert (lowered, epoch + 1) == told(kafka)  # a level of 0 is not told
    assert ErrorCode.none == update(kafka, ("share.version", 1), version=version).error_code
    assert (levels, epoch + 2) == told(kafka)


@pytest.mark.parametrize(
    ("levels", "kind", "said"),
    [
        ([("share.version", 0)], UPGRADE, "Can't downgrade the version of this feature without"),
        ([("share.version", 2)], UPGRADE, "only supports versions 0-1"),
        ([("share.version", -1)], SAFE, "less than 0"),
        ([("metadata.version", 25)], UPGRADE, "does not support this feature"),
        ([("reactor.end_txns", 1)], UPGRADE, "does not support this feature"),
        ([("share.version", 1)], 0, "upgrade type"),
        ([("share.version", 1)], 4, "upgrade type"),
        ([("group.version", 0), ("share.version", 2)], SAFE, "for feature share.version"),
    ],
)
def test_what_kafka_refuses_is_refused_and_nothing_changes(
    kafka: Kafka, levels: list[tuple[str, int]], kind: int, said: str
) -> None:
    before = told(kafka)
    answer = update(kafka, *levels, kind=kind)
    assert ErrorCode.invalid_update_version == answer.error_code
    assert said in answer.error_message
    assert before == told(kafka)


def test_a_downgrade_to_a_newer_version_is_refused(kafka: Kafka) -> None:
    update(kafka, (NAME, 0), kind=SAFE)
    answer = update(kafka, (NAME, 1), kind=UNSAFE)
    assert ErrorCode.invalid_update_version == answer.error_code
    assert "Can't downgrade to a newer version" in answer.error_message


@pytest.mark.parametrize("levels", [(), (("share.version", 1), ("share.version", 1))])
def test_empty_or_repeated_updates_are_refused(kafka: Kafka, levels: tuple[tuple[str, int], ...]) -> None:
    assert ErrorCode.invalid_request == update(kafka, *levels).error_code


@pytest.mark.parametrize("version", [1, 2])
def test_validated_only_change_is_not_made(kafka: Kafka, version: int) -> None:
    before = told(kafka)
    answer = update(kafka, ("share.version", 0), kind=SAFE, version=version, validate_only=True)
    assert ErrorCode.none == answer.error_code
    assert before == told(kafka)


def test_a_change_that_cannot_be_stored_is_reported(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    before = told(kafka)

    def fail(changes: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(kafka.inside.catalogue, "alter_documents", fail)
    assert ErrorCode.kafka_storage_error == update(kafka, ("share.version", 0), kind=SAFE).error_code
    assert before == told(kafka)


def test_a_setting_holds_a_feature_back() -> None:
    with Kafka(feature_max_levels={"share.version": 0}) as kafka:
        assert "share.version" not in told(kafka)[0]
        assert "only supports versions 0-0" in update(kafka, ("share.version", 1)).error_message
        answer = kafka.ask(ApiKey.API_VERSIONS, 4, client_software_name="test", client_software_version="1")
        supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
        assert (0, 0) == supported["share.version"]
