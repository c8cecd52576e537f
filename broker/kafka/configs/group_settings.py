"""The settings of groups of the newer protocols, as in Kafka 4 (names, types, defaults, bounds), and each group's values.

The default of a setting is the broker's setting of the same name after the prefix ``group.``; its bounds are the broker's
settings with ``min`` and ``max`` in their names, where those exist. A group need not exist to be given settings.

``GroupConfigs`` keeps the values in the catalogue, beside the broker's settings under the group's name, and in memory. Any thread
reads them without a lock; handler threads change them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from broker.config import BrokerConfig
from broker.config.group_settings import reset_ms
from broker.config.setting import InvalidSetting, Setting
from broker.errors import RequestError
from broker.metadata.catalogue import Catalogue
from broker.runtime.threads import Lock
from protocol.kafka.errors import ErrorCode

BROKER_PREFIX = "group."


def _int(name: str, default: int, least: int, most: int, doc: str) -> Setting:
    """Default and bounds as Kafka has them; the broker's settings take precedence (``in_force``)."""
    return Setting(name, "int", default, BROKER_PREFIX + name, doc, least=least, most=most)


SETTINGS: tuple[Setting, ...] = (
    _int(
        "consumer.heartbeat.interval.ms",
        5_000,
        5_000,
        15_000,
        "How often members of the consumer protocol are told to send heartbeats.",
    ),
    _int("consumer.session.timeout.ms", 45_000, 45_000, 60_000, "How long such a member may be silent."),
    Setting(
        "share.auto.offset.reset",
        "string",
        "latest",
        None,
        "Where a share group begins in a partition: at the end (`latest`), at the beginning (`earliest`), or as far back as "
        "`by_duration:` says with a duration of ISO 8601, such as `by_duration:PT1H`.",
        check=reset_ms,
    ),
    _int(
        "share.delivery.count.limit",
        5,
        2,
        10,
        "How often a record is delivered that is not acknowledged before it is given up.",
    ),
    _int(
        "share.heartbeat.interval.ms",
        5_000,
        5_000,
        15_000,
        "How often members of a share group are told to send heartbeats.",
    ),
    Setting(
        "share.isolation.level",
        "string",
        "read_uncommitted",
        None,
        "Whether records of transactions are delivered only when they are committed.",
        choices=("read_uncommitted", "read_committed"),
    ),
    _int(
        "share.partition.max.record.locks",
        2_000,
        100,
        4_000,
        "How many records of a partition the members of the group may hold at a time.",
    ),
    _int(
        "share.record.lock.duration.ms",
        30_000,
        15_000,
        60_000,
        "How long a record stays with the member that has acquired it.",
    ),
    Setting(
        "share.renew.acknowledge.enable",
        "boolean",
        True,
        None,
        "Whether members may renew their hold on a record instead of acknowledging it.",
    ),
    _int("share.session.timeout.ms", 45_000, 45_000, 60_000, "How long a member of a share group may be silent."),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
# A heartbeat interval has to be shorter than the session timeout of the same kind of group.
_SHORTER = (
    ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"),
    ("share.heartbeat.interval.ms", "share.session.timeout.ms"),
)

# Keeps groups apart from the two entities of the broker's settings, "" and the broker's id.
_ENTITY_PREFIX = "group:"
# How many groups may have settings of their own.
_GROUPS_MAX = 10_000
_NOTHING: Mapping[str, str] = MappingProxyType({})

# Returns the changes from the group's own values, and a function for the value in force of a setting without an own value.
Plan = Callable[[Mapping[str, str], Callable[[str], str]], Mapping[str, str | None]]


def setting_of(config: BrokerConfig, name: str) -> Setting:
    """With default and bounds as they are on this broker. Raises RequestError (invalid_config) for an unknown name."""
    setting = BY_NAME.get(name)
    if setting is None:
        raise RequestError(ErrorCode.invalid_config, f"There is no group setting {name!r}.")
    kind, _, rest = setting.field.partition("_")
    return attrs.evolve(
        setting,
        default=getattr(config, f"group_{setting.field}", setting.default),
        least=getattr(config, f"group_{kind}_min_{rest}", setting.least),
        most=getattr(config, f"group_{kind}_max_{rest}", setting.most),
    )


def check(config: BrokerConfig, own: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """The changes of a group's ``own`` values, in the form in which they are kept. Raises RequestError (invalid_config) or
    InvalidSetting for an unknown name or an invalid value."""
    checked: dict[str, str | None] = {}
    for name, value in changes.items():
        setting = setting_of(config, name)
        checked[name] = None if value is None else setting.text(setting.parse(value))
    after = {**own, **checked}
    for shorter, longer in _SHORTER:
        low, high = (_value(config, name, after.get(name)) for name in (shorter, longer))
        if low >= high:
            raise RequestError(ErrorCode.invalid_config, f"Set {shorter} ({low}) lower than {longer} ({high}).")
    return checked


def _value(config: BrokerConfig, name: str, own: str | None) -> Any:
    """The value in force where a group's own is ``own``. A value outside the broker's bounds becomes the nearest bound."""
    setting = setting_of(config, name)
    if own is None:
        return setting.default
    try:
        value = attrs.evolve(setting, least=None, most=None).parse(own)
    except InvalidSetting:
        return setting.default
    if setting.most is not None and value > setting.most:
        return setting.most
    return setting.least if setting.least is not None and value < setting.least else value


class GroupConfigs:
    """The values set for single groups. ``on_change`` is called with the id of a group whose settings have changed."""

    def __init__(self, catalogue: Catalogue, config: BrokerConfig) -> None:
        self.config = config
        self.on_change: list[Callable[[str], None]] = []
        self._catalogue = catalogue
        self._lock = Lock()  # one change at a time
        self._own: dict[str, Mapping[str, str]] = {}

    def load(self) -> None:
        """At the start. Raises StorageError."""
        stored = self._catalogue.configs_by_entity(_ENTITY_PREFIX)
        self._own = {entity.removeprefix(_ENTITY_PREFIX): own for entity, own in stored.items()}

    def own(self, group_id: str) -> Mapping[str, str]:
        """The values set for a group, which need not exist."""
        return self._own.get(group_id, _NOTHING)

    def groups(self) -> list[str]:
        """The groups with own values."""
        return list(self._own)

    def value(self, group_id: str, name: str) -> Any:
        """The value in force."""
        return _value(self.config, name, self.own(group_id).get(name))

    def alter(self, group_id: str, plan: Plan, *, validate_only: bool = False) -> None:
        """Make the changes that ``plan`` returns, durably. Raises RequestError, InvalidSetting, StorageError, or what ``plan``
        raises; then nothing has changed."""
        require_name(group_id)
        with self._lock:
            own = self.own(group_id)
            changes = check(self.config, own, plan(own, lambda name: setting_of(self.config, name).default_text))
            if validate_only:
                return
            after = {name: value for name, value in {**own, **changes}.items() if value is not None}
            if after and group_id not in self._own and len(self._own) >= _GROUPS_MAX:
                raise RequestError(
                    ErrorCode.policy_violation, f"{_GROUPS_MAX} groups have settings of their own: take some back."
                )
            self._catalogue.alter_broker_configs(changes, _ENTITY_PREFIX + group_id)
            if after:
                self._own[group_id] = after
            else:
                self._own.pop(group_id, None)
        for listener in self.on_change:
            listener(group_id)


def require_name(name: str) -> None:
    """Raises RequestError (invalid_request) for "": groups have no common settings."""
    if not name:
        raise RequestError(ErrorCode.invalid_request, "Name the group; there are no settings for all groups.")
