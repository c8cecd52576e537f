"""All settings of a broker in one value. A setting that Kafka has, too, has Kafka's name in snake case.

The base classes only group the settings; rules that concern two settings are checked here. The tables in
docs/SETTINGS.md are generated from this class.
"""

import attrs

from broker.addresses import parse_address
from broker.config.group_settings import (
    BOUNDED,
    ConsumerGroupSettings,
    FeatureSettings,
    GroupSettings,
    ShareGroupSettings,
    TransactionSettings,
)
from broker.config.pulsar_settings import PulsarSettings
from broker.config.security_settings import AclSettings, QuotaSettings, SaslSettings, TlsSettings
from broker.config.server_settings import HttpSettings, NetworkSettings, ServerSettings, ShuffleSettings
from broker.config.tier_settings import TierSettings
from broker.config.topic_settings import CleanerSettings, LogSettings, TopicSettings
from broker.errors import ConfigError


@attrs.frozen(kw_only=True, slots=False)
class BrokerConfig(
    AclSettings,
    ShuffleSettings,
    HttpSettings,
    TransactionSettings,
    ConsumerGroupSettings,
    FeatureSettings,
    ShareGroupSettings,
    GroupSettings,
    CleanerSettings,
    TierSettings,
    LogSettings,
    TopicSettings,
    PulsarSettings,
    TlsSettings,
    SaslSettings,
    QuotaSettings,
    NetworkSettings,
    ServerSettings,
):
    """All settings of a broker, each within its bounds. Raises ConfigError otherwise."""

    # The names of settings with an explicit value, even if it is the default. Not a setting itself.
    given: frozenset[str] = attrs.field(default=frozenset(), eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        listeners = [*self.listeners, *([self.control_listener] if self.control_listener else [])]
        if not self.listeners:
            raise ConfigError("Set listeners to at least one URL, for example kafka://127.0.0.1:9092.")
        names = [listener.name for listener in listeners]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"Give one of the listeners named {name!r} another name, with ?name=... at the end of its URL."
                )
        for name, address in self.advertised_listeners.items():
            if name not in names:
                raise ConfigError(f"Name a listener in advertised_listeners: {name!r} is not among {', '.join(names)}.")
            parse_address(address, "advertised_listeners")
        for address, connections in self.max_connections_per_ip_overrides.items():
            if not connections >= 0:
                raise ConfigError(f"Set max_connections_per_ip_overrides of {address} to a whole number of at least 0.")
        if self.users and not any(listener.sasl for listener in listeners):
            raise ConfigError(
                "Add a +sasl listener, such as kafka+sasl://localhost:9092, or take users out: nobody could log in."
            )
        _in_order(self, "outgoing_low_water_bytes", "outgoing_high_water_bytes")
        _in_order(self, "group_min_session_timeout_ms", "group_max_session_timeout_ms")
        for name in BOUNDED:
            _in_order(self, name.format("min_"), name.format(""))
            _in_order(self, name.format(""), name.format("max_"))
        _in_order(self, "group_consumer_heartbeat_interval_ms", "group_consumer_session_timeout_ms")
        _in_order(self, "group_share_heartbeat_interval_ms", "group_share_session_timeout_ms")
        _in_order(self, "group_share_max_size", "group_share_max_share_sessions")
        _in_order(self, "log_cleaner_min_compaction_lag_ms", "log_cleaner_max_compaction_lag_ms")
        _in_order(self, "message_max_bytes", "socket_request_max_bytes")
        if self.objects is not None:
            _local_within(self, "ms")
            _local_within(self, "bytes")

    def advertised_address(self, name: str) -> tuple[str, int] | None:
        """The address that the settings tell clients of a listener to connect to. None: the listener's own address."""
        if name in self.advertised_listeners:
            return parse_address(self.advertised_listeners[name], "advertised_listeners")
        return next((listener.advertised for listener in self.listeners if listener.name == name), None)


def _local_within(config: BrokerConfig, unit: str) -> None:
    """As for topics (``LogConfig``), none of which could be created otherwise."""
    local, whole = getattr(config, f"log_local_retention_{unit}"), getattr(config, f"log_retention_{unit}")
    if local != -2 and whole != -1 and not 0 <= local <= whole:
        raise ConfigError(
            f"Set log_local_retention_{unit} to at most log_retention_{unit} ({whole}), or to -2, which is the same: it is "
            f"{local}."
        )


def _in_order(config: BrokerConfig, low: str, high: str) -> None:
    if getattr(config, low) > getattr(config, high):
        raise ConfigError(f"Set {low} ({getattr(config, low)}) no higher than {high} ({getattr(config, high)}).")
