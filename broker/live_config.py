"""The settings in force: the configuration of the start, with later changes. Kafka's DynamicBrokerConfig.

A client's changes for this broker take precedence over those for all brokers, then comes the configuration, then the defaults.
The changes are kept in the catalogue under Kafka's names, and are in force again after a restart.

``LiveConfig.in_force`` is the only place with the value in force of every setting; any thread reads it. The table in
``broker/config/dynamic_settings.py`` says which settings can be changed; ``broker/server/reconfiguration.py`` carries out each
``Way`` of it. A change is checked whole, carried out, and written, in this order; if a step fails, everything is as before.

Changes are made one after the other, on handler threads.

Tests: tests/test_live_config.py, tests/kafka/handlers/test_incremental_alter_configs.py.
"""

from collections.abc import Callable, Mapping
from functools import partial

import attrs

from broker.config import BrokerConfig
from broker.config.dynamic_settings import OF_LISTENER_PREFIX, TABLE, Way, is_kept, merged, parsed, way_of
from broker.errors import BrokerError, ConfigError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.runtime.threads import Lock

log = get_logger("config")

ALL_BROKERS = ""
Changes = Mapping[str, str | None]


def _nothing(_before: BrokerConfig, _after: BrokerConfig) -> None:
    pass


@attrs.frozen
class Reconfigurable:
    """Who puts settings in force. Both are called with ``LiveConfig``'s lock held."""

    apply: Callable[[BrokerConfig], None]
    # (in force, wanted): raises ConfigError or another Refusal if it cannot be carried out, and changes nothing.
    check: Callable[[BrokerConfig, BrokerConfig], None] = _nothing


class LiveConfig:
    def __init__(self, static: BrokerConfig, catalogue: Catalogue) -> None:
        """Raises ConfigError where earlier changes contradict the configuration of this start."""
        self.static = static
        self._catalogue = catalogue
        self._lock = Lock()
        self._ways: dict[Way, Reconfigurable] = {}
        # By entity: "" for all brokers, or this broker's id. Replaced as a whole, and so are its values.
        self.changes: Mapping[str, Mapping[str, str]] = {
            entity: _usable(catalogue.broker_configs(entity)) for entity in (ALL_BROKERS, self.this_broker)
        }
        try:
            self.in_force = self._merged(self.changes)
        except ConfigError as error:
            names = sorted({name for each in self.changes.values() for name in each})
            raise ConfigError(
                f"Set what agrees with the settings that were changed while the broker was running ({', '.join(names)}): "
                f"{error}"
            ) from error

    @property
    def this_broker(self) -> str:
        return str(self.static.node_id)

    def register(self, way: Way, reconfigurable: Reconfigurable) -> None:
        """At the start: say how settings are put in force."""
        self._ways[way] = reconfigurable

    def can_change(self, name: str) -> bool:
        return way_of(name) in self._ways

    def alter(self, entity: str, plan: Callable[[Mapping[str, str]], Changes], *, validate_only: bool = False) -> None:
        """Carry out the changes that ``plan`` makes of the entity's present changes; None removes a change.

        Raises what ``plan`` raises, ConfigError or another Refusal for impossible values, StorageError; then nothing has changed.
        """
        with self._lock:
            if entity not in self.changes:
                self._alter_elsewhere(entity, plan, validate_only)
                return
            changes = plan(self.changes[entity])
            own = {name: value for name, value in {**self.changes[entity], **changes}.items() if value is not None}
            after = {**self.changes, entity: own}
            before, wanted = self.in_force, self._merged(after)
            # This broker's own value may cover a value for all brokers, which must be usable as a fallback.
            merged(self.static, (after[ALL_BROKERS],))
            store = partial(self._catalogue.alter_broker_configs, changes, entity)
            self._carry_out(before, wanted, None if validate_only else store)
            if validate_only:
                return
            self.in_force = wanted
            self.changes = after
        # Values are not logged: one of them may be a secret.
        log.info("settings_changed", settings=sorted(changes), broker=entity or "all")

    def _alter_elsewhere(self, entity: str, plan: Callable[[Mapping[str, str]], Changes], validate_only: bool) -> None:
        """Of another node, which puts it in force when it hears of it."""
        present = _usable(self._catalogue.broker_configs(entity))
        changes = plan(present)
        own = {name: value for name, value in {**present, **changes}.items() if value is not None}
        merged(self.static, (self.changes[ALL_BROKERS], own))
        if not validate_only:
            self._catalogue.alter_broker_configs(changes, entity)
            log.info("settings_changed", settings=sorted(changes), broker=entity)

    def _carry_out(self, before: BrokerConfig, wanted: BrokerConfig, store: Callable[[], None] | None) -> None:
        """Check, apply and store; None: check only. Raises ConfigError, another Refusal or StorageError; then nothing has
        changed."""
        different = {name for name in (*TABLE, "listener_settings") if getattr(before, name) != getattr(wanted, name)}
        steps = [each for way, each in self._ways.items() if _concerns(way, different, before, wanted)]
        for step in steps:
            step.check(before, wanted)
        if store is None:
            return
        begun: list[Reconfigurable] = []
        try:
            for step in steps:
                begun.append(step)
                step.apply(wanted)
            store()
        except BaseException:
            for step in reversed(begun):
                _put_back(step, before)
            raise

    def reload(self) -> None:
        """Put in force what another node has made of the catalogue: of the settings for all brokers, and of this one's. Raises
        BrokerError; then nothing has changed."""
        with self._lock:
            after = {entity: _usable(self._catalogue.broker_configs(entity)) for entity in self.changes}
            if after == self.changes:
                return
            before, wanted = self.in_force, self._merged(after)
            self._carry_out(before, wanted, lambda: None)
            self.in_force, self.changes = wanted, after

    def _merged(self, changes: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
        return merged(self.static, (changes[ALL_BROKERS], changes[self.this_broker]))


def _usable(stored: Mapping[str, str]) -> dict[str, str]:
    """The stored settings without those that only another version knows."""
    usable = {}
    for name, value in stored.items():
        if not is_kept(name):
            continue
        if way_of(name) is not None and not name.startswith(OF_LISTENER_PREFIX):
            try:
                parsed(name, value)
            except ConfigError as error:
                log.error("change_ignored", setting=name, error=str(error))
                continue
        usable[name] = value
    return usable


def _concerns(way: Way, different: set[str], before: BrokerConfig, wanted: BrokerConfig) -> bool:
    if any(TABLE.get(name) is way for name in different):
        return True
    # A listener's own settings: those that have come, gone or changed.
    keys = {key for key, _ in before.listener_settings.items() ^ wanted.listener_settings.items()}
    return any(way_of(f"{OF_LISTENER_PREFIX}{key}") is way for key in keys)


def _put_back(step: Reconfigurable, before: BrokerConfig) -> None:
    try:
        step.apply(before)
    except (OSError, RuntimeError, BrokerError) as error:
        log.error("change_not_taken_back", error=str(error))
