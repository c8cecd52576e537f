"""Settings of consumer groups whose coordinator assigns the partitions (KIP-848), for all of them. A group may have its own
values of those that ``broker/kafka/configs/group_settings.py`` lists, within the bounds that are set here.

Tests: tests/config/test_setting.py, tests/config/test_consumer_group_settings.py.
"""

from collections.abc import Iterable

import attrs

from broker.config.kafka_setting import INT_MAX
from broker.config.setting import KAFKA, setting
from broker.errors import ConfigError

ASSIGNORS = ("uniform", "range")
# How Kafka's configurations name them as well.
_CLASSES = {f"org.apache.kafka.coordinator.group.assignor.{name.capitalize()}Assignor": name for name in ASSIGNORS}
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def _assignors(value: "Iterable[str] | str") -> tuple[str, ...]:
    """A list, or one text with commas between the items."""
    given = value.split(",") if isinstance(value, str) else value
    words = (word.strip() for word in given)
    names = tuple(dict.fromkeys(_CLASSES.get(word, word) for word in words if word))
    unknown = [name for name in names if name not in ASSIGNORS]
    if unknown or not names:
        what = f"there is no {unknown[0]!r} here" if unknown else "it is empty"
        raise ConfigError(f"Set group_consumer_assignors to one or both of {', '.join(ASSIGNORS)}: {what}.")
    return names


@attrs.frozen(kw_only=True, slots=False)
class ConsumerGroupSettings:
    """Consumer groups of the newer protocol (KIP-848)."""

    group_consumer_session_timeout_ms: int = setting(
        45_000, least=1, most=INT_MAX, doc="Remove a member that has sent no heartbeat for this long.", reason=KAFKA
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, least=1, most=INT_MAX, doc="The shortest such time that a group may be given.", reason=KAFKA
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, least=1, most=INT_MAX, doc="The longest such time that a group may be given.", reason=KAFKA
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000,
        least=1,
        most=INT_MAX,
        doc="How often members are told to send heartbeats. A rebalance takes a few of these intervals.",
        reason=KAFKA,
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, least=1, most=INT_MAX, doc="The shortest such interval that a group may be given.", reason=KAFKA
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, least=1, most=INT_MAX, doc="The longest such interval that a group may be given.", reason=KAFKA
    )
    group_consumer_max_size: int = setting(
        INT_MAX, unit="members", least=1, most=INT_MAX, doc="The largest number of members of one group.", reason=KAFKA
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        ASSIGNORS,
        converter=_assignors,
        doc="The assignors that members may ask for: `uniform`, `range`. The first is used where they do not ask for one.",
        reason=KAFKA,
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        choices=MIGRATION_POLICIES,
        doc="Whether a group with members may change to the newer protocol when its first member of that protocol joins "
        "(`upgrade`), and back when its last one leaves (`downgrade`).",
        reason=KAFKA,
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000,
        least=10_000,
        most=INT_MAX,
        doc="Match the regular expressions of members against the topics at least this often. New topics are matched soon; "
        "this is for rights on topics that were given or taken.",
        reason=KAFKA,
    )
