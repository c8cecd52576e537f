"""The settings of a consumer group in Kafka 4: names, types, defaults and bounds.

They concern groups of the protocols of KIP-848 and KIP-932, which are not served. Administration tools can set and show them, and
they have no effect. They are kept in the catalogue beside the broker's, under the group's name. Runs on handler threads.
"""

from collections.abc import Mapping
from typing import Any

from broker.config.kafka_setting import KafkaSetting
from broker.errors import RequestError
from broker.kafka.context import KafkaContext
from protocol.kafka.errors import ErrorCode

# From Kafka 4.0's GroupConfig; bounds are the defaults of the broker's min and max settings. The broker's setting of the same
# meaning has the same name after this prefix.
BROKER_PREFIX = "group."


def _ms(name: str, default: int, least: int, most: int, doc: str) -> KafkaSetting[int]:
    return KafkaSetting(name, "int", default, BROKER_PREFIX + name, doc, minimum=least, maximum=most)


SETTINGS: tuple[KafkaSetting[Any], ...] = (
    _ms(
        "consumer.heartbeat.interval.ms",
        5_000,
        5_000,
        15_000,
        "How often members of the consumer protocol are to say that they live.",
    ),
    _ms("consumer.session.timeout.ms", 45_000, 45_000, 60_000, "How long such a member may be silent."),
    KafkaSetting(
        "share.auto.offset.reset",
        "string",
        "latest",
        None,
        "Where a share group begins in a partition.",
        choices=("latest", "earliest"),
    ),
    _ms(
        "share.heartbeat.interval.ms",
        5_000,
        5_000,
        15_000,
        "How often members of a share group are to say that they live.",
    ),
    _ms(
        "share.record.lock.duration.ms",
        30_000,
        15_000,
        60_000,
        "How long a record stays with the member that has acquired it.",
    ),
    _ms("share.session.timeout.ms", 45_000, 45_000, 60_000, "How long a member of a share group may be silent."),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}

# Keeps groups apart from the two entities of the broker's settings, "" and the broker's id.
_ENTITY_PREFIX = "group:"


def require_name(name: str) -> str:
    """The entity of a group in the catalogue. Raises RequestError (invalid_request) for "": groups have no common settings."""
    if not name:
        raise RequestError(ErrorCode.invalid_request, "Name the group; there are no settings for all groups.")
    return _ENTITY_PREFIX + name


def own(context: KafkaContext, name: str) -> dict[str, str]:
    """The settings that were made for a group. The group need not exist."""
    return context.catalogue.broker_configs(require_name(name))


def in_force(name: str) -> str:
    """The value in force for a group without a value of its own. Raises RequestError (invalid_config) for an unknown name."""
    if name not in BY_NAME:
        raise RequestError(ErrorCode.invalid_config, f"There is no group setting {name!r}.")
    return BY_NAME[name].default_text


def check(changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """The changes in the form in which they are kept. Raises RequestError (invalid_config) for an unknown name or a bad value."""
    checked: dict[str, str | None] = {}
    for name, value in changes.items():
        in_force(name)
        setting = BY_NAME[name]
        checked[name] = None if value is None else setting.text(setting.parse(value))
    return checked
