"""Settings of groups: validation before they are kept, and the values in force."""

import pytest

from broker.config import BrokerConfig
from broker.errors import Refusal, RequestError
from broker.kafka.configs import group_settings
from broker.kafka.configs.group_settings import BY_NAME, GroupConfigs, check, require_name, setting_of
from broker.kafka.error_codes import code_of
from broker.metadata.sqlite import SqliteCatalogue
from protocol.kafka.errors import ErrorCode

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
CONFIG = BrokerConfig()
WIDE = BrokerConfig(group_consumer_min_session_timeout_ms=6_000, group_consumer_max_heartbeat_interval_ms=60_000)


def configs(catalogue: SqliteCatalogue, config: BrokerConfig = CONFIG) -> GroupConfigs:
    configs = GroupConfigs(catalogue, config)
    configs.load()
    return configs


def test_unset_group_setting_has_the_brokers_value() -> None:
    assert setting_of(CONFIG, SESSION).default_text == "45000"
    config = BrokerConfig(group_consumer_session_timeout_ms=50_000)
    assert setting_of(config, SESSION).default_text == "50000"
    assert all(setting_of(CONFIG, setting.name) == setting for setting in group_settings.SETTINGS)


def test_values_are_kept_in_kafkas_form_until_removed() -> None:
    assert check(CONFIG, {}, {SESSION: " 50000 ", "share.auto.offset.reset": None}) == {
        SESSION: "50000",
        "share.auto.offset.reset": None,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "1"),
        (SESSION, "44999"),
        (SESSION, "60001"),
        (SESSION, "soon"),
        ("share.auto.offset.reset", "x"),
    ],
)
def test_unknown_settings_and_invalid_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(Refusal) as refused:
        check(CONFIG, {}, {name: value})
    assert code_of(refused.value) == ErrorCode.invalid_config


def test_the_bounds_are_the_brokers() -> None:
    assert check(WIDE, {}, {SESSION: "6000"}) == {SESSION: "6000"}
    with pytest.raises(Refusal, match="at least 6000"):
        check(WIDE, {}, {SESSION: "5999"})


@pytest.mark.parametrize(
    ("own", "changes"),
    [
        ({}, {INTERVAL: "6000", SESSION: "6000"}),
        ({INTERVAL: "9000"}, {SESSION: "8000"}),
        ({}, {INTERVAL: "60000"}),
        ({INTERVAL: "9000", SESSION: "50000"}, {SESSION: None, INTERVAL: "45000"}),
    ],
)
def test_a_heartbeat_interval_is_shorter_than_the_session(own: dict[str, str], changes: dict[str, str | None]) -> None:
    with pytest.raises(Refusal, match=f"Set {INTERVAL} .* lower than {SESSION}") as refused:
        check(WIDE, own, changes)
    assert code_of(refused.value) == ErrorCode.invalid_config


def test_groups_have_no_common_settings() -> None:
    require_name("readers")
    with pytest.raises(RequestError) as refused:
        require_name("")
    assert refused.value.code == ErrorCode.invalid_request


def test_names_are_found_by_name() -> None:
    assert set(BY_NAME) == {setting.name for setting in group_settings.SETTINGS}


def test_group_settings_apply_at_once_and_after_restart(catalogue: SqliteCatalogue) -> None:
    groups = configs(catalogue)
    told: list[str] = []
    groups.on_change.append(told.append)
    groups.alter("g", lambda own, default: {SESSION: "50000"})
    assert (groups.value("g", SESSION), groups.value("other", SESSION)) == (50_000, 45_000)
    assert told == ["g"]
    groups = configs(catalogue)
    assert groups.own("g") == {SESSION: "50000"}
    groups.alter("g", lambda own, default: {SESSION: None})
    assert groups.value("g", SESSION) == 45_000
    assert configs(catalogue).own("g") == {}


def test_a_change_that_is_only_validated_changes_nothing(catalogue: SqliteCatalogue) -> None:
    groups = configs(catalogue)
    groups.on_change.append(lambda name: pytest.fail("nothing has changed"))
    groups.alter("g", lambda own, default: {SESSION: "50000"}, validate_only=True)
    assert groups.own("g") == {}


def test_value_outside_the_brokers_bounds_becomes_the_nearest(catalogue: SqliteCatalogue) -> None:
    configs(catalogue, WIDE).alter("g", lambda own, default: {SESSION: "6000", INTERVAL: "5500"})
    assert configs(catalogue).value("g", SESSION) == 45_000
    assert configs(catalogue).value("g", INTERVAL) == 5_500


def test_unreadable_stored_value_counts_as_the_brokers(catalogue: SqliteCatalogue) -> None:
    catalogue.alter_broker_configs({SESSION: "soon", "share.auto.offset.reset": "never"}, "group:g")
    assert configs(catalogue).value("g", SESSION) == 45_000
    assert configs(catalogue).value("g", "share.auto.offset.reset") == "latest"


def test_so_many_groups_may_have_settings(catalogue: SqliteCatalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_settings, "_GROUPS_MAX", 2)
    groups = configs(catalogue)
    for name in ("a", "b", "a"):
        groups.alter(name, lambda own, default: {SESSION: "50000"})
    with pytest.raises(RequestError, match="take some back"):
        groups.alter("c", lambda own, default: {SESSION: "50000"})
    groups.alter("a", lambda own, default: {SESSION: None})
    groups.alter("c", lambda own, default: {SESSION: "50000"})
