"""All settings of a broker together."""

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.config import BrokerConfig, setting_infos
from broker.config.topic_settings import SETTINGS
from broker.errors import ConfigError
from broker.kafka.configs.group_settings import SETTINGS as GROUP_SETTINGS


def test_every_setting_does_something() -> None:
    root = Path(__file__).parents[2] / "broker"
    sources = [path.read_text("utf-8") for path in root.rglob("*.py") if path.parent.name != "config"]
    topic_defaults = {setting.kafka.replace(".", "_") for setting in SETTINGS if setting.kafka}
    # Read in broker/config itself; and one whose only possible value says that there is one node.
    elsewhere = {
        "advertised_listeners",
        "allow_anonymous_listeners",
        "listener_settings",
        "default_replication_factor",
    }
    # Defaults and bounds of what a group may set for itself, found by name.
    of_groups = {
        f"group_{kind}_{bound}{rest}"
        for kind, _, rest in (setting.field.partition("_") for setting in GROUP_SETTINGS)
        for bound in ("", "min_", "max_")
    }
    used = topic_defaults | elsewhere | of_groups
    idle = [
        info.name
        for info in setting_infos(BrokerConfig)
        if info.name not in used and not any(re.search(rf"\b{info.name}\b", source) for source in sources)
    ]
    assert [] == idle


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listeners": ()}, "Set listeners to at least one URL"),
        ({"outgoing_low_water_bytes": 9, "outgoing_high_water_bytes": 8}, "Set outgoing_low_water_bytes"),
        ({"log_cleaner_min_compaction_lag_ms": 9, "log_cleaner_max_compaction_lag_ms": 8}, "Set log_cleaner_min"),
        (
            {"objects": "memory://", "log_local_retention_ms": 9, "log_retention_ms": 8},
            r"Set log_local_retention_ms to at most log_retention_ms \(8\)",
        ),
        (
            {"objects": "memory://", "log_local_retention_bytes": -1, "log_retention_bytes": 8},
            "Set log_local_retention_bytes to at most",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig(**settings)


def test_setting_names_are_unique_across_groups() -> None:
    names = [field.name for group in BrokerConfig.__mro__ if attrs.has(group) for field in own_fields(group)]
    assert sorted(set(names)) == sorted(names)


def own_fields(group: type) -> list[Any]:
    return [field for field in attrs.fields(group) if not field.inherited]
