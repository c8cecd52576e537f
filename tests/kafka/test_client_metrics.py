"""Subscriptions to the metrics of clients: valid settings, matching clients, and persistence."""

from unittest import mock

import pytest

from broker import expressions
from broker.errors import RequestError
from broker.kafka.configs import client_metrics
from broker.kafka.configs.client_metrics import ClientMetricsConfigs, subscription
from broker.metadata.sqlite import SqliteCatalogue
from protocol.kafka.errors import ErrorCode

FACTS = {
    "client_instance_id": "id",
    "client_id": "app-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.0",
    "client_source_address": "127.0.0.1",
    "client_source_port": "40000",
}


def configs(catalogue: SqliteCatalogue) -> ClientMetricsConfigs:
    configs = ClientMetricsConfigs(catalogue)
    configs.load()
    return configs


def put(configs: ClientMetricsConfigs, name: str, **changes: str | None) -> None:
    configs.alter(name, lambda _own, _in_force: {key.replace("_", "."): value for key, value in changes.items()})


@pytest.mark.parametrize(
    ("match", "meant"),
    [
        ("", True),
        ("client_software_name=apache-kafka-java", True),
        ("client_software_name=apache-kafka", False),
        ("client_software_name = apache-.* , client_software_version = 4[.].*", True),
        ("client_software_name=apache-.*,client_id=app-2", False),
        ("client_source_address=127.0.0.1,client_source_port=[0-9]+,client_instance_id=i.", True),
    ],
)
def test_all_conditions_of_a_subscription_must_match_whole(match: str, meant: bool) -> None:
    assert subscription({"match": match}).matches(FACTS) is meant


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ({"interval.ms": "99"}, ErrorCode.invalid_request),
        ({"interval.ms": "3600001"}, ErrorCode.invalid_request),
        ({"interval.ms": "soon"}, ErrorCode.invalid_request),
        ({"match": "client_id"}, ErrorCode.invalid_config),
        ({"match": "client_id="}, ErrorCode.invalid_config),
        ({"match": "client_id=a=b"}, ErrorCode.invalid_config),
        ({"match": "user=alice"}, ErrorCode.invalid_config),
        ({"match": "client_id=("}, ErrorCode.invalid_config),
    ],
)
def test_values_that_cannot_be_are_refused(own: dict[str, str], code: ErrorCode) -> None:
    with pytest.raises(RequestError) as refused:
        subscription(own)
    assert refused.value.code == code


def test_subscriptions_survive_restarts_and_end_without_settings(catalogue: SqliteCatalogue) -> None:
    before = configs(catalogue)
    put(before, "all", metrics=" * ", interval_ms="1000")
    put(before, "java", metrics="a, b", match="client_software_name=java")
    after = configs(catalogue)
    assert after.names() == ["all", "java"]
    assert after.own("all") == {"metrics": "*", "interval.ms": "1000"}
    assert [one.metrics for one in after.subscriptions] == [("*",), ("a", "b")]
    put(after, "all", metrics=None, interval_ms=None)
    assert configs(catalogue).names() == ["java"]


def test_whoever_listens_is_told_of_every_change(catalogue: SqliteCatalogue) -> None:
    reloaded = configs(catalogue)
    versions: list[int] = []
    reloaded.on_change.append(lambda: versions.append(reloaded.version))
    put(reloaded, "one", metrics="a")
    put(reloaded, "one", metrics="b")
    assert versions == [2, 3]


def test_refused_or_validated_change_changes_nothing(catalogue: SqliteCatalogue) -> None:
    reloaded = configs(catalogue)
    put(reloaded, "one", metrics="a")
    for name, changes in [("one", {"nothing": "1"}), ("one", {"match": "client_id=("}), ("", {"metrics": "b"})]:
        with pytest.raises(RequestError):
            put(reloaded, name, **changes)
    with pytest.raises(RequestError):
        put(reloaded, "one", metrics="b" * 3_000)
    reloaded.alter("one", lambda _own, _in_force: {"metrics": "b"}, validate_only=True)
    assert reloaded.own("one") == configs(catalogue).own("one") == {"metrics": "a"}


def test_the_number_of_subscriptions_is_bounded(catalogue: SqliteCatalogue) -> None:
    reloaded = configs(catalogue)
    with mock.patch.object(client_metrics, "_SUBSCRIPTIONS_MAX", 2):
        put(reloaded, "1", metrics="a")
        put(reloaded, "2", metrics="a")
        with pytest.raises(RequestError, match="delete some"):
            put(reloaded, "3", metrics="a")
        put(reloaded, "2", metrics="b")


def test_without_re2_only_plain_values_match(catalogue: SqliteCatalogue) -> None:
    reloaded = configs(catalogue)
    put(reloaded, "plain", match="client_id=app-1")
    put(reloaded, "pattern", match="client_id=app.*")
    with mock.patch.object(expressions, "_INSTALLED", False):
        (left,) = configs(catalogue).subscriptions
        assert left.matches(FACTS)
        with pytest.raises(RequestError, match="google-re2"):
            put(reloaded, "another", match="client_id=app.*")
