"""Names of settings as people write them."""

import pytest

from broker.cli.configs import Name, hint, understand

OF_BROKER = {"log.retention.ms", "num.partitions", "log.dirs", "message.max.bytes"}
OF_TOPIC = {"retention.ms", "max.message.bytes", "cleanup.policy"}


@pytest.mark.parametrize(
    ("written", "known", "meant"),
    [
        ("log.retention.ms", OF_BROKER, Name("log.retention.ms")),
        ("log_retention_ms", OF_BROKER, Name("log.retention.ms")),
        ("log.retention.hours", OF_BROKER, Name("log.retention.ms", 3_600_000)),
        ("log.retention.hours", OF_BROKER | {"log.retention.hours"}, Name("log.retention.hours")),
        ("log.retention.hours", OF_TOPIC, Name("retention.ms", 3_600_000)),
        ("log_retention_minutes", OF_TOPIC, Name("retention.ms", 60_000)),
        ("retention.ms", OF_BROKER, Name("log.retention.ms")),
        ("message.max.bytes", OF_TOPIC, Name("max.message.bytes")),
        ("data_dir", OF_BROKER, Name("log.dirs")),
        ("retention.msec", OF_TOPIC, None),
    ],
)
def test_each_name_is_understood_as_broker_s_setting(written: str, known: set[str], meant: Name | None) -> None:
    assert meant == understand(written, known)


def test_values_are_converted_except_never() -> None:
    assert "18000000" == Name("log.retention.ms", 3_600_000).convert("5")
    assert "-1" == Name("log.retention.ms", 3_600_000).convert("-1")
    assert "x" == Name("log.retention.ms", 3_600_000).convert("x")


def test_hint_names_the_nearest_setting() -> None:
    assert "did you mean retention.ms?" == hint("retention.msec", OF_TOPIC)
    assert "lists all settings" in hint("xyzzy", OF_TOPIC)
