"""The settings of groups of the newer protocols, as in Kafka 4 (names, types, defaults, bounds), and each group's values.

The default of a setting is the broker's setting of the same name after the prefix ``group.``, which also describes it; its bounds
are the broker's settings with ``min`` and ``max`` in their names.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from broker.config import BrokerConfig, setting_infos
from broker.config.group_settings import BOUNDED, reset_ms
from broker.config.setting import InvalidSetting, Setting
from broker.errors import RequestError
from broker.kafka.configs.own_values import Changes, OwnValues, Plan
from broker.metadata.catalogue import Catalogue
from protocol.kafka.errors import ErrorCode

# Those without a default among the broker's settings.
_OF_GROUPS_ONLY = (
    Setting(
        "share.auto.offset.reset",
        "string",
        "latest",
        None,
        "Where a share group begins in a partition: at the end (`latest`), at the beginning (`earliest`), or as far back as "
        "`by_duration:` says with a duration of ISO 8601, such as `by_duration:PT1H`.",
        check=reset_ms,
    ),
    Setting(
        "share.isolation.level",
        "string",
        "read_uncommitted",
        None,
        "Whether records of transactions are delivered only when they are committed.",
        choices=("read_uncommitted", "read_committed"),
    ),
    Setting(
        "share.renew.acknowledge.enable",
        "boolean",
        True,
        None,
        "Whether members may renew their hold on a record instead of acknowledging it.",
    ),
)
_BROKERS = {info.name: info for info in setting_infos(BrokerConfig)}
# For the others, the names of the broker's settings with the default and the bounds.
_OF_BROKER = {_BROKERS[names.format("")].seen.removeprefix("group."): names for names in BOUNDED}


def _of_broker(config: BrokerConfig, name: str) -> Setting:
    default, least, most = (getattr(config, _OF_BROKER[name].format(part)) for part in ("", "min_", "max_"))
    info = _BROKERS[_OF_BROKER[name].format("")]
    return attrs.evolve(info, name=name, type=None, default=default, least=least, most=most)


# With Kafka's defaults and bounds; the broker's settings take precedence (``setting_of``).
BY_NAME: dict[str, Setting] = {setting.name: setting for setting in _OF_GROUPS_ONLY}
_DEFAULTS = BrokerConfig()
BY_NAME |= {name: _of_broker(_DEFAULTS, name) for name in _OF_BROKER}
SETTINGS = tuple(BY_NAME[name] for name in sorted(BY_NAME))
# A heartbeat interval has to be shorter than the session timeout of the same kind of group.
_SHORTER = (
    ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"),
    ("share.heartbeat.interval.ms", "share.session.timeout.ms"),
)

# How many groups may have settings of their own.
_GROUPS_MAX = 10_000


def setting_of(config: BrokerConfig, name: str) -> Setting:
    """With default and bounds as they are on this broker. Raises RequestError (invalid_config) for an unknown name."""
    if name not in BY_NAME:
        raise RequestError(ErrorCode.invalid_config, f"There is no group setting {name!r}.")
    return _of_broker(config, name) if name in _OF_BROKER else BY_NAME[name]


def check(config: BrokerConfig, own: Mapping[str, str], changes: Mapping[str, str | None]) -> Changes:
    """The changes of a group's ``own`` values, in the form in which they are kept. Raises RequestError (invalid_config) or
    InvalidSetting for an unknown name or an invalid value."""
    checked: Changes = {}
    for name, value in changes.items():
        setting = setting_of(config, name)
        checked[name] = None if value is None else setting.text(setting.parse(value))
    values = {**own, **checked}
    for shorter, longer in _SHORTER:
        low, high = (_value(config, name, values.get(name)) for name in (shorter, longer))
        if low >= high:
            raise RequestError(ErrorCode.invalid_config, f"Set {shorter} ({low}) lower than {longer} ({high}).")
    return checked


def _value(config: BrokerConfig, name: str, own: str | None) -> Any:
    """The value in force where a group's own is ``own``. A value outside the broker's bounds becomes the nearest bound."""
    if own is None:  # without a description: a coordinator asks for this for each group that it restores
        return getattr(config, _OF_BROKER[name].format("")) if name in _OF_BROKER else BY_NAME[name].default
    setting = setting_of(config, name)
    try:
        value = attrs.evolve(setting, least=None, most=None).parse(own)
    except InvalidSetting:
        return setting.default
    if setting.most is not None and value > setting.most:
        return setting.most
    return setting.least if setting.least is not None and value < setting.least else value


class GroupConfigs(OwnValues):
    """The values set for single groups. ``on_change`` is called with the id of a group whose settings have changed."""

    def __init__(self, catalogue: Catalogue, config: BrokerConfig) -> None:
        super().__init__(catalogue, "group:")
        self.config = config
        self.on_change: list[Callable[[str], None]] = []

    def reload(self) -> None:
        """Put in force what another node has changed. Raises StorageError."""
        for group_id in sorted(self._load()):
            for listener in self.on_change:
                listener(group_id)

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
            if not self._has_room(group_id, changes, _GROUPS_MAX):
                raise RequestError(
                    ErrorCode.policy_violation, f"{_GROUPS_MAX} groups have settings of their own: take some back."
                )
            self._keep(group_id, changes)
        for listener in self.on_change:
            listener(group_id)


def require_name(name: str) -> None:
    """Raises RequestError (invalid_request) for "": groups have no common settings."""
    if not name:
        raise RequestError(ErrorCode.invalid_request, "Name the group; there are no settings for all groups.")
