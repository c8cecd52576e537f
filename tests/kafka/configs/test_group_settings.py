"""Settings of groups: what is checked before it is remembered."""

import pytest

from broker.errors import Refusal, RequestError
from broker.kafka.configs import group_settings
from broker.kafka.configs.group_settings import BY_NAME, check, in_force, require_name
from broker.kafka.error_codes import code_of
from protocol.kafka.errors import ErrorCode

SESSION = "consumer.session.timeout.ms"


def test_what_a_group_does_not_set_has_kafkas_default() -> None:
    assert in_force(SESSION) == "45000"
    assert all(setting.parse(setting.default_text) == setting.default for setting in group_settings.SETTINGS)


def test_values_are_kept_as_kafka_writes_them_and_none_takes_one_back() -> None:
    assert check({SESSION: " 50000 ", "share.auto.offset.reset": None}) == {
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
def test_what_is_no_setting_or_no_value_is_refused(name: str, value: str) -> None:
    with pytest.raises(Refusal) as refused:
        check({name: value})
    assert code_of(refused.value) == ErrorCode.invalid_config


def test_groups_have_no_common_settings() -> None:
    assert require_name("readers") == "group:readers"
    with pytest.raises(RequestError) as refused:
        require_name("")
    assert refused.value.code == ErrorCode.invalid_request


def test_names_are_found_by_name() -> None:
    assert set(BY_NAME) == {setting.name for setting in group_settings.SETTINGS}
