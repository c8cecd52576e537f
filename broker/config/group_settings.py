"""Settings of the coordinators: features, transactions, and groups.

The settings of consumer groups (KIP-848) and share groups (KIP-932) apply to all groups. A group may have its own
values of the settings that ``broker/kafka/configs/group_settings.py`` lists, within the bounds that are set here.

`reset_ms` parses where a group begins in a partition that it has never read: ``latest``, ``earliest``, or
``by_duration:`` and a duration. Values: no thread, no I/O.

Tests: tests/config/test_setting.py,
tests/config/test_settings.py.
"""

import re
from collections.abc import Iterable, Mapping

import attrs

from broker.config.setting import INT_MAX, own_setting, setting, some_of, words


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class FeatureSettings:
    """Features."""

    feature_max_levels: Mapping[str, int] = own_setting(
        attrs.Factory(dict),
        doc="The highest level at which each of these features may be, also by UpdateFeatures: feature = level. With "
        "`transaction.version` = 1 every producer uses the classic flow of transactions; 0 turns a feature off.",
        reason="Every feature may be at the highest level that this version of the broker has.",
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class TransactionSettings:
    """Transactions."""

    transaction_max_timeout_ms: int = setting(
        900_000,
        least=1,
        most=INT_MAX,
        doc="The longest `transaction.timeout.ms` that a producer may ask for. A transaction that is open for longer than "
        "its producer asked for is aborted.",
        reason="Kafka's default: 15 minutes.",
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        least=1,
        most=INT_MAX,
        doc="Forget a transactional id that has not been used for this long.",
        reason="Kafka's default: a week.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, least=1, most=INT_MAX, doc="How often to look for such transactional ids."
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class GroupSettings:
    """Consumer groups."""

    group_min_session_timeout_ms: int = setting(
        6_000, least=0, most=INT_MAX, doc="The shortest session timeout that a member may ask for."
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, least=0, most=INT_MAX, doc="The longest session timeout that a member may ask for."
    )
    group_initial_rebalance_delay_ms: int = setting(
        100,
        least=0,
        most=INT_MAX,
        doc="How long the first rebalance of an empty group waits for more members, and as long again while more come.",
        reason="[Decision 0018](decisions/0018-initial-rebalance-delay.md): members that start together are one rebalance, and "
        "a member alone has its first message 0.1 s later than with 0. Kafka's 3000 makes everybody wait 3 s.",
    )
    group_max_size: int = setting(
        INT_MAX, unit="members", least=1, most=INT_MAX, doc="The largest number of members of one group."
    )
    group_max_bytes: int = own_setting(
        4 * 1024 * 1024,
        least=64 * 1024,
        most=INT_MAX,
        doc="Memory for the members of one group: about 1 KiB for each, and what they send and are assigned. A member that "
        "would exceed it is refused with GROUP_MAX_SIZE_REACHED, an assignment with UNKNOWN_SERVER_ERROR.",
        reason="In Kafka a group has to fit into message.max.bytes (1 MiB), with one protocol of each member; here all "
        "protocols count.",
    )
    coordinator_max_bytes: int = own_setting(
        256 * 1024 * 1024,
        least=1024 * 1024,
        doc="Memory for all groups, committed offsets and transactional ids. What would exceed it is refused with "
        "COORDINATOR_NOT_AVAILABLE, and an event is logged; existing groups, offsets and transactions go on.",
        reason="30,000 groups, or 600,000 committed offsets. Kafka has no limit: one connection can fill its memory.",
    )
    offset_metadata_max_bytes: int = setting(
        4096,
        kafka="offset.metadata.max.bytes",
        least=0,
        most=INT_MAX,
        doc="The longest text that may be stored with a committed offset.",
    )
    offsets_retention_minutes: int = setting(
        10_080,
        least=1,
        most=INT_MAX,
        doc="Forget the offsets of a group that has been empty for this long.",
        reason="Kafka's default: a week.",
    )
    offsets_retention_check_interval_ms: int = setting(600_000, least=1, doc="How often to look for such offsets.")


ASSIGNORS = ("uniform", "range")
# Kafka's configurations also name the assignors by these classes.
_CLASSES = {f"org.apache.kafka.coordinator.group.assignor.{name.capitalize()}Assignor": name for name in ASSIGNORS}
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


def _assignors(value: "Iterable[str] | str") -> tuple[str, ...]:
    names = (_CLASSES.get(word, word) for word in words(value))
    return some_of(ASSIGNORS, names, "group_consumer_assignors to one or both of")


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class ConsumerGroupSettings:
    """Consumer groups of the newer protocol (KIP-848)."""

    group_consumer_session_timeout_ms: int = setting(
        45_000, least=1, most=INT_MAX, doc="Remove a member that has sent no heartbeat for this long."
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, least=1, most=INT_MAX, doc="The shortest such time that a group may be given."
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, least=1, most=INT_MAX, doc="The longest such time that a group may be given."
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000,
        least=1,
        most=INT_MAX,
        doc="How often members are told to send heartbeats. A rebalance takes a few of these intervals.",
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, least=1, most=INT_MAX, doc="The shortest such interval that a group may be given."
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, least=1, most=INT_MAX, doc="The longest such interval that a group may be given."
    )
    group_consumer_max_size: int = setting(
        INT_MAX, unit="members", least=1, most=INT_MAX, doc="The largest number of members of one group."
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        ASSIGNORS,
        converter=_assignors,
        doc="The assignors that members may ask for: `uniform`, `range`. The first is used where they do not ask for one.",
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        choices=MIGRATION_POLICIES,
        doc="Whether a group with members may change to the newer protocol when its first member of that protocol joins "
        "(`upgrade`), and back when its last one leaves (`downgrade`).",
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000,
        least=10_000,
        most=INT_MAX,
        doc="Match the regular expressions of members against the topics at least this often. New topics are matched soon; "
        "this is for rights on topics that were given or taken.",
    )


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class ShareGroupSettings:
    """Share groups."""

    group_share_max_size: int = setting(
        200, unit="members", least=1, most=1000, doc="The largest number of members of one share group."
    )
    group_share_session_timeout_ms: int = setting(
        45_000, least=1, most=INT_MAX, doc="Remove a member that has sent no heartbeat for this long."
    )
    group_share_min_session_timeout_ms: int = setting(
        45_000, least=1, most=INT_MAX, doc="The shortest such time that a group may be given."
    )
    group_share_max_session_timeout_ms: int = setting(
        60_000, least=1, most=INT_MAX, doc="The longest such time that a group may be given."
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000,
        least=1,
        most=INT_MAX,
        doc="How often members are told to send heartbeats. A member learns of new partitions with its next heartbeat.",
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        5_000, least=1, most=INT_MAX, doc="The shortest such interval that a group may be given."
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        15_000, least=1, most=INT_MAX, doc="The longest such interval that a group may be given."
    )
    group_share_record_lock_duration_ms: int = setting(
        30_000,
        least=1_000,
        most=3_600_000,
        doc="How long a record stays with the member that has acquired it. Then another member may get it.",
    )
    group_share_min_record_lock_duration_ms: int = setting(
        15_000, least=1_000, most=30_000, doc="The shortest such time that a group may be given."
    )
    group_share_max_record_lock_duration_ms: int = setting(
        60_000, least=30_000, most=3_600_000, doc="The longest such time that a group may be given."
    )
    group_share_delivery_count_limit: int = setting(
        5,
        unit="deliveries",
        least=2,
        most=25,
        doc="How often a record is delivered that is not acknowledged. Then it is given up (archived).",
    )
    group_share_min_delivery_count_limit: int = setting(
        2, unit="deliveries", least=2, most=5, doc="The smallest such number that a group may be given."
    )
    group_share_max_delivery_count_limit: int = setting(
        10, unit="deliveries", least=5, most=25, doc="The largest such number that a group may be given."
    )
    group_share_partition_max_record_locks: int = setting(
        2_000,
        unit="records",
        least=100,
        most=10_000,
        doc="How many records of a partition the members of a group may hold at a time. No more are delivered until some "
        "are acknowledged.",
    )
    group_share_min_partition_max_record_locks: int = setting(
        100, unit="records", least=100, most=2_000, doc="The smallest such number that a group may be given."
    )
    group_share_max_partition_max_record_locks: int = setting(
        4_000, unit="records", least=2_000, most=10_000, doc="The largest such number that a group may be given."
    )
    group_share_max_share_sessions: int = setting(
        2_000, unit="sessions", least=1, most=INT_MAX, doc="The largest number of share sessions."
    )


# Settings with a minimum and a maximum for the values of single groups.
BOUNDED = (
    "group_consumer_{}session_timeout_ms",
    "group_consumer_{}heartbeat_interval_ms",
    "group_share_{}session_timeout_ms",
    "group_share_{}heartbeat_interval_ms",
    "group_share_{}record_lock_duration_ms",
    "group_share_{}delivery_count_limit",
    "group_share_{}partition_max_record_locks",
)


LATEST, EARLIEST = "latest", "earliest"
_BY_DURATION = "by_duration:"

# ISO 8601 as Java's Duration reads it: days, hours, minutes and seconds, of which there is at least one.
_DURATION = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,9})(?:\.(?P<fraction>\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def reset_ms(text: str) -> int | None:
    """How far back in time (ms) ``by_duration`` goes; None for ``latest`` and ``earliest``. Raises ValueError for other
    texts, which says which are allowed."""
    if text in (LATEST, EARLIEST):
        return None
    match = _DURATION.fullmatch(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else None
    if match is None or text[-1] in "PpTt":
        raise ValueError("it must be latest, earliest, or by_duration: and a duration such as PT1H or P2DT12H")
    parts = {name: int(digits) for name, digits in match.groupdict(default="0").items() if name != "fraction"}
    minutes = (parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]
    return (minutes * 60 + parts["seconds"]) * 1000 + int((match["fraction"] or "0").ljust(3, "0")[:3])
