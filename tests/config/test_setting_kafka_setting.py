"""One setting as Kafka defines it: text to value and back, and what it refuses."""

import pytest

from broker.config.setting import InvalidSetting, Kind, Setting

POLICY = Setting("a.policy", "list", ("x",), "b.policy", "", choices=("x", "y"))
RATIO = Setting("a.ratio", "double", 0.5, None, "", least=0, most=1)


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
