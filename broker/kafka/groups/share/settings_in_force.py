"""The settings in force for each share group, ready to be used: they are asked for with every heartbeat and every fetch.

A group without settings of its own has the broker's, which are one value for all such groups. Any thread reads without a lock;
whoever changes the settings of a group (``GroupConfigs``) replaces its value.
"""

from typing import Any

from broker.config.group_settings import reset_ms
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.share.share_settings import ShareSettings

# The name of no group: one without settings of its own.
_NONE = ""


class SettingsInForce:
    def __init__(self, configs: GroupConfigs) -> None:
        self._configs = configs
        self._usual = self._compute(_NONE)
        self._of_groups: dict[str, ShareSettings] = {}
        configs.on_change.append(self._changed)

    def load(self) -> None:
        """At the start, after ``configs`` was loaded."""
        for group_id in self._configs.groups():
            self._changed(group_id)

    def of(self, group_id: str) -> ShareSettings:
        return self._of_groups.get(group_id, self._usual)

    def _changed(self, group_id: str) -> None:
        settings = self._compute(group_id)
        if settings == self._usual:
            self._of_groups.pop(group_id, None)
        else:
            self._of_groups[group_id] = settings

    def _compute(self, group_id: str) -> ShareSettings:
        def value(name: str) -> Any:
            return self._configs.value(group_id, "share." + name)

        reset = value("auto.offset.reset")
        return ShareSettings(
            record_lock_duration_ms=value("record.lock.duration.ms"),
            delivery_count_limit=value("delivery.count.limit"),
            max_record_locks=value("partition.max.record.locks"),
            auto_offset_reset=reset,
            reset_duration_ms=reset_ms(reset) or 0,
            isolation_level=value("isolation.level"),
            renew_acknowledge_enable=value("renew.acknowledge.enable"),
            session_timeout_ms=value("session.timeout.ms"),
            heartbeat_interval_ms=value("heartbeat.interval.ms"),
        )
