import pytest

from broker.config import BrokerConfig
from broker.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("range", ("range",)),
        ("range, uniform,range", ("range", "uniform")),
        (["org.apache.kafka.coordinator.group.assignor.RangeAssignor"], ("range",)),
    ],
)
def test_assignors_are_named_as_in_kafka(given: object, meant: tuple[str, ...]) -> None:
    assert BrokerConfig(group_consumer_assignors=given).group_consumer_assignors == meant


@pytest.mark.parametrize("given", ["", "sticky", ["uniform", "com.example.Own"]])
def test_an_assignor_that_is_not_there_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="Set group_consumer_assignors to one or both of uniform, range"):
        BrokerConfig(group_consumer_assignors=given)


@pytest.mark.parametrize(
    "settings",
    [
        {"group_consumer_session_timeout_ms": 44_999},
        {"group_consumer_session_timeout_ms": 60_001},
        {"group_consumer_heartbeat_interval_ms": 15_001},
        {"group_consumer_min_heartbeat_interval_ms": 5_001},
        {
            "group_consumer_heartbeat_interval_ms": 50_000,
            "group_consumer_max_heartbeat_interval_ms": 50_000,
        },
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="no higher than"):
        BrokerConfig(**settings)
