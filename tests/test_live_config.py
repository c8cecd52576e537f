"""The settings in force: what takes precedence, and that a change that fails anywhere has changed nothing."""

from typing import Any

import pytest

from broker.config import BrokerConfig, load
from broker.config.dynamic_settings import Way
from broker.config.server_settings import default_processors
from broker.errors import ConfigError, StorageError
from broker.live_config import ALL_BROKERS, LiveConfig, Reconfigurable


class Kept:
    """The part of a catalogue that is needed; ``fails`` makes its next write fail."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = {"": {}, "1": {}}
        self.fails = False

    def broker_configs(self, entity: str = "") -> dict[str, str]:
        return dict(self.rows[entity])

    def alter_broker_configs(self, changes: dict[str, str | None], entity: str = "") -> None:
        if self.fails:
            raise StorageError("the disk is full")
        for name, value in changes.items():
            self.rows[entity].pop(name, None)
            if value is not None:
                self.rows[entity][name] = value


class Threads:
    """Puts the number of handlers in force."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.fails_at = 0

    def apply(self, config: BrokerConfig) -> None:
        self.applied.append(config.io_threads)
        if config.io_threads == self.fails_at:
            raise OSError("no more threads")

    def check(self, before: BrokerConfig, after: BrokerConfig) -> None:
        if after.io_threads > 100:
            raise ConfigError("Use fewer.")


@pytest.fixture
def kept() -> Any:
    return Kept()


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def live(kept: Any, threads: Threads) -> LiveConfig:
    live = LiveConfig(load(io_threads=4), kept)
    live.register(Way.HANDLERS, Reconfigurable(threads.apply, threads.check))
    return live


def alter(live: LiveConfig, entity: str, validate_only: bool = False, **changes: str | None) -> None:
    dotted = {name.replace("_", "."): value for name, value in changes.items()}
    live.alter(entity, lambda _: dotted, validate_only=validate_only)


def test_precedence_is_broker_then_cluster_then_configuration(live: LiveConfig, threads: Threads) -> None:
    alter(live, ALL_BROKERS, num_io_threads="5")
    alter(live, "1", num_io_threads="6")
    alter(live, ALL_BROKERS, num_io_threads="7")  # this broker has its own
    assert live.in_force.io_threads == 6
    alter(live, "1", num_io_threads=None)
    assert live.in_force.io_threads == 7
    alter(live, ALL_BROKERS, num_io_threads=None)
    assert live.in_force.io_threads == 4
    assert threads.applied == [5, 6, 7, 4]
    assert live.static.io_threads == 4


@pytest.mark.parametrize("value", ["0", "many", "101", ""])
def test_impossible_change_is_refused_whole(live: LiveConfig, kept: Kept, threads: Threads, value: str) -> None:
    with pytest.raises(ConfigError):
        alter(live, "1", num_io_threads=value, log_retention_ms="5")
    assert (live.in_force, live.changes["1"], kept.rows["1"], threads.applied) == (live.static, {}, {}, [])


@pytest.mark.parametrize(("name", "value"), [("num.io.threads", "0"), ("message.max.bytes", "-1")])
def test_cluster_value_is_checked_though_broker_overrides_it(
    live: LiveConfig, kept: Kept, name: str, value: str
) -> None:
    live.alter("1", lambda own: {name: "60"})
    with pytest.raises(ConfigError):
        live.alter(ALL_BROKERS, lambda own: {name: value})
    live.alter("1", lambda own: {name: None})
    assert {"": {}, "1": {}} == kept.rows


def test_check_changes_nothing(live: LiveConfig, kept: Kept, threads: Threads) -> None:
    alter(live, "1", num_io_threads="6", validate_only=True)
    with pytest.raises(ConfigError):
        alter(live, "1", num_io_threads="101", validate_only=True)
    assert (live.in_force, kept.rows["1"], threads.applied) == (live.static, {}, [])


@pytest.mark.parametrize("what", ["carried out", "written"])
def test_failed_change_is_undone(live: LiveConfig, kept: Kept, threads: Threads, what: str) -> None:
    alter(live, "1", num_io_threads="5")
    if what == "written":
        kept.fails = True
    else:
        threads.fails_at = 6
    with pytest.raises((StorageError, OSError)):
        alter(live, "1", num_io_threads="6")
    assert threads.applied == [5, 6, 5]
    assert live.in_force.io_threads == 5
    assert (live.changes["1"], kept.rows["1"]) == ({"num.io.threads": "5"}, {"num.io.threads": "5"})


def test_known_changes_survive_a_restart(kept: Any) -> None:
    kept.rows[""] = {"num.io.threads": "5", "no.such.setting": "1", "num.network.threads": "many"}
    kept.rows["1"] = {"num.io.threads": "6", "background.threads": "9"}
    live = LiveConfig(load(), kept)
    assert (live.in_force.io_threads, live.in_force.network_threads) == (6, default_processors())
    assert live.changes["1"] == {"num.io.threads": "6", "background.threads": "9"}


def test_contradicting_changes_are_named_at_the_start(kept: Any) -> None:
    kept.rows[""] = {"message.max.bytes": "5000"}
    with pytest.raises(ConfigError, match=r"message\.max\.bytes"):
        LiveConfig(load(socket_request_max_bytes=4000, message_max_bytes=1000), kept)


def test_only_settings_with_an_owner_can_be_changed(live: LiveConfig) -> None:
    assert live.can_change("num.io.threads")
    assert not live.can_change("num.network.threads")  # nobody has registered it
    assert not live.can_change("queued.max.requests")
    assert not live.can_change("io_threads")  # the name that clients see is Kafka's
