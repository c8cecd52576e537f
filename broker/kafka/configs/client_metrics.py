"""Subscriptions to the metrics of clients (KIP-714): resources of the type client-metrics, with Kafka's names, types,
defaults and bounds. A subscription says which metrics are wanted, how often, and of which clients.

A subscription exists as long as any of its settings has a value.

Expressions in ``match`` are RE2's and match as a whole. Values of letters, digits, ``-`` and ``_`` need no RE2.

Tests: tests/kafka/test_client_metrics.py.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from broker.config.setting import InvalidSetting, Setting
from broker.errors import RequestError
from broker.kafka.configs.own_values import OwnValues, Plan, after
from broker.kafka.groups.consumer.values import compile_regex
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from protocol.kafka.errors import ErrorCode

log = get_logger("kafka")

METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"
# A client that no subscription matches is subscribed to nothing, at this interval.
INTERVAL_DEFAULT_MS: Final = 300_000
# The facts about a client that ``match`` may test.
FACTS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)

SETTINGS: tuple[Setting, ...] = (
    Setting(INTERVAL, "int", INTERVAL_DEFAULT_MS, None, "How often clients push.", least=100, most=3_600_000),
    Setting(
        MATCH,
        "list",
        (),
        None,
        f"Which clients are meant: `name=expression`, all of which must match. The names are {', '.join(FACTS)}.",
    ),
    Setting(METRICS, "list", (), None, "The beginnings of the names of the metrics that are wanted; `*` is all."),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}

# Every client that subscribes is matched against all subscriptions.
_SUBSCRIPTIONS_MAX = 100
_LENGTH_MAX = 2_000  # characters of a name or a value
_PLAIN = re.compile(r"[A-Za-z0-9_-]*")


@attrs.frozen
class Subscription:
    metrics: tuple[str, ...]
    interval_ms: int
    match: tuple[tuple[str, Callable[[str], object]], ...]

    def matches(self, facts: Mapping[str, str]) -> bool:
        return all(matches(facts[name]) for name, matches in self.match)


def setting_of(name: str) -> Setting:
    """Raises RequestError (invalid_request) for an unknown name."""
    setting = BY_NAME.get(name)
    if setting is None:
        raise RequestError(ErrorCode.invalid_request, f"There is no client metrics setting {name!r}.")
    return setting


def subscription(own: Mapping[str, str]) -> Subscription:
    """Raises RequestError for invalid values."""
    values = {}
    for setting in SETTINGS:
        try:
            values[setting.name] = setting.parse(own[setting.name]) if setting.name in own else setting.default
        except InvalidSetting as error:
            raise RequestError(ErrorCode.invalid_request, str(error)) from None
    return Subscription(values[METRICS], values[INTERVAL], tuple(map(_match, values[MATCH])))


def _normal(name: str, value: str) -> str:
    """The form in which a valid value is kept."""
    setting = BY_NAME[name]
    return setting.text(setting.parse(value))


def _match(text: str) -> tuple[str, Callable[[str], object]]:
    name, separator, expression = (part.strip() for part in text.partition("="))
    if not separator or name not in FACTS or not expression or "=" in expression:
        raise RequestError(ErrorCode.invalid_config, f"Illegal client matching pattern: {text!r}.")
    if _PLAIN.fullmatch(expression):
        return name, expression.__eq__
    try:
        return name, compile_regex(expression).fullmatch
    except RequestError:
        message = (
            f"Illegal client matching pattern: {text!r} is not an expression of RE2, or google-re2 is not installed."
        )
        raise RequestError(ErrorCode.invalid_config, message) from None


class ClientMetricsConfigs(OwnValues):
    """``on_change`` is called after every change."""

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__(catalogue, "client-metrics:")
        self.on_change: list[Callable[[], None]] = []
        # Grows with every change, so that results of older subscriptions are recognised as old.
        self.version = 0
        self.subscriptions: tuple[Subscription, ...] = ()

    def load(self) -> None:
        super().load()
        self._changed()

    def reload(self) -> None:
        """Put in force what another node has changed. Raises StorageError."""
        if self._load():
            self._changed()

    def alter(self, name: str, plan: Plan, *, validate_only: bool = False) -> None:
        """Make the changes that ``plan`` returns, durably. Raises RequestError, StorageError, or what ``plan`` raises; then
        nothing has changed."""
        require_name(name)
        with self._lock:
            own = self.own(name)
            changes = plan(own, lambda setting: setting_of(setting).default_text)
            for setting, value in changes.items():
                setting_of(setting)
                if value is not None and len(value) > _LENGTH_MAX:
                    raise RequestError(ErrorCode.invalid_request, f"{setting} is longer than {_LENGTH_MAX} characters.")
            subscription(after(own, changes))
            changes = {
                setting: value if value is None else _normal(setting, value) for setting, value in changes.items()
            }
            if not self._has_room(name, changes, _SUBSCRIPTIONS_MAX):
                raise RequestError(
                    ErrorCode.policy_violation, f"There are {_SUBSCRIPTIONS_MAX} subscriptions: delete some."
                )
            if validate_only:
                return
            self._keep(name, changes)
            self._changed()

    def _changed(self) -> None:
        subscriptions = []
        for name, own in self._own.items():
            try:
                subscriptions.append(subscription(own))
            except RequestError as error:  # RE2 was installed when it was set
                log.warning("client_metrics_ignored", subscription=name, error=str(error))
        self.subscriptions = tuple(subscriptions)
        self.version += 1
        for listener in self.on_change:
            listener()


def require_name(name: str) -> None:
    """Raises RequestError (invalid_request)."""
    if not name:
        raise RequestError(ErrorCode.invalid_request, "Name the subscription; there are no settings for all of them.")
    if len(name) > _LENGTH_MAX:
        raise RequestError(ErrorCode.invalid_request, f"The name is longer than {_LENGTH_MAX} characters.")
