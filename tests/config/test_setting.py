"""What is known of each setting, that values are checked wherever they come from, and how texts of topics and groups are read."""

import pytest

from broker.config import BrokerConfig, load, setting_infos
from broker.config.setting import InvalidSetting, Kind, Setting
from broker.errors import ConfigError

POLICY = Setting("a.policy", "list", ("x",), "b.policy", "", choices=("x", "y"))
RATIO = Setting("a.ratio", "double", 0.5, None, "", least=0, most=1)


def test_a_value_given_in_python_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"Set network_threads to a whole number from 1 to 1024: it is '3'\."):
        BrokerConfig(network_threads="3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'io_threads'"):
        load(io_thread=3)
    assert "9310" in str(BrokerConfig(listeners=["kafka://localhost:9310"]).listeners[0])  # type: ignore[arg-type]


def test_every_setting_has_purpose_and_reason_for_default() -> None:
    for info in setting_infos(BrokerConfig):
        assert info.doc.endswith("."), info.name
        assert info.reason.endswith("."), info.name
        assert info.kafka or info.reason != "Kafka's default.", info.name
        assert info.section, info.name


def test_units_come_last_in_names() -> None:
    for info in setting_infos(BrokerConfig):
        if info.unit == "ms":
            assert info.name.endswith("_ms"), info.name


def test_defaults_are_within_bounds_and_writable_as_arguments() -> None:
    for info in setting_infos(BrokerConfig):
        if info.plain_type in (int, float, str, bool) and info.default is not None:
            config = load(
                overrides=[f"{info.name}={str(info.default).lower() if info.plain_type is bool else info.default}"]
            )
            assert info.default == getattr(config, info.name)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", " TRUE ", True),
        ("boolean", "false", False),
        ("int", "-2147483648", -(2**31)),
        ("long", "+9223372036854775807", 2**63 - 1),
        ("double", "1e-3", 0.001),
        ("string", " a b ", "a b"),
        ("list", " a , ,b,", ("a", "b")),
        ("list", "", ()),
    ],
)
def test_a_text_is_read_by_its_kind(kind: Kind, text: str, value: object) -> None:
    default = {"boolean": False, "int": 0, "long": 0, "double": 0.0, "string": "", "list": ()}[kind]
    setting = Setting("a.b", kind, default, None, "")
    assert setting.parse(text) == value
    assert setting.parse(setting.text(value)) == value
    assert setting.field == "a_b"


@pytest.mark.parametrize(
    ("setting", "text", "reason"),
    [
        (Setting("a.b", "int", 0, None, ""), "2147483648", "it is not a int"),
        (Setting("a.b", "long", 0, None, ""), "1_000", "it is not a long"),
        (Setting("a.b", "long", 0, None, ""), "\u0661", "it is not a long"),
        (Setting("a.b", "boolean", False, None, ""), "yes", "it is not a boolean"),
        (RATIO, "nan", "it must be at least 0"),
        (RATIO, "1.5", "it must be at most 1"),
        (POLICY, "x,z", "it must be one of x, y"),
    ],
)
def test_invalid_value_is_refused_with_setting_s_name(setting: Setting, text: str, reason: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        setting.parse(text)
    assert refused.value.message == f"Invalid value {text!r} for configuration {setting.name}: {reason}."


@pytest.mark.parametrize(
    ("kind", "default", "minimum"), [("int", -1, 0.0), ("int", "soon", None), ("int", "5", None), ("list", "x", None)]
)
def test_invalid_default_is_an_immediate_error(kind: Kind, default: object, minimum: float | None) -> None:
    with pytest.raises(InvalidSetting):
        Setting("a.b", kind, default, None, "", least=minimum)
