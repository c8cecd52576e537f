"""Names of settings as people write them, as the names that a broker has.

The same thing has several names in Kafka: ``log.retention.hours`` of a broker, its ``log.retention.ms``, and ``retention.ms`` of
a topic. Where a broker has the setting under another of them, that one is meant, and a value is converted to its unit. The names
that this project's broker has for its settings are understood, too.

Tests: tests/cli/test_setting_names.py.
"""

import difflib
from collections.abc import Collection

import attrs

from broker.config import BrokerConfig, setting_infos
from broker.config.kafka_names import COARSER
from broker.config.topic_settings import SETTINGS

_OF_BROKER = {setting.name: setting.synonym for setting in SETTINGS if setting.synonym}
_KAFKAS = {info.name: info.kafka for info in setting_infos(BrokerConfig) if info.kafka}
_OF_TOPIC = {synonym: name for name, synonym in _OF_BROKER.items()}


@attrs.frozen
class Name:
    """``factor``: how many units of this setting are one of the setting that was written."""

    name: str
    factor: int = 1

    def convert(self, value: str) -> str:
        """Kafka's -1 and such mean the same in all units."""
        if self.factor == 1 or not value.isdecimal():
            return value
        return str(int(value) * self.factor)


def understand(written: str, known: Collection[str]) -> Name | None:
    """The setting among ``known`` that is meant; None if it is none of them."""
    dotted = written.replace("_", ".")
    for candidate in (written, dotted, _KAFKAS.get(written)):
        if candidate is not None and candidate in known:
            return Name(candidate)
    finer, factor = dotted, 1
    if dotted in COARSER:
        ours, factor, _ = COARSER[dotted]
        finer = _KAFKAS.get(ours, ours)
    for other in (finer, _OF_TOPIC.get(finer), _OF_BROKER.get(finer)):
        if other is not None and other in known:
            return Name(other, factor)
    return None


def hint(written: str, known: Collection[str]) -> str:
    """What was perhaps meant, as the end of a sentence."""
    nearest = difflib.get_close_matches(written.replace("_", "."), known, 1, 0.6)
    return f"did you mean {nearest[0]}?" if nearest else "`broker configs get --all` lists all settings."
