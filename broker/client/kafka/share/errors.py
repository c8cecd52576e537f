"""What the share consumer raises beside the errors of every Kafka client.

Tests: tests/client/kafka/share/test_other_brokers.py.
"""

from broker.client.kafka.errors import KafkaClientError, UnsupportedVersionError


class ShareGroupsUnsupportedError(UnsupportedVersionError):
    """The broker has no share groups, or they are switched off."""


class AcknowledgementError(KafkaClientError):
    """Acknowledgements did not count, so the records may be delivered again. ``offsets``: which, by (topic, partition)."""

    offsets: dict[tuple[str, int], list[int]]


def unsupported(where: str) -> ShareGroupsUnsupportedError:
    return ShareGroupsUnsupportedError(
        f"The broker at {where} serves no share groups: that needs Apache Kafka 4.2, or this project's broker."
    )


def switched_off(where: str) -> ShareGroupsUnsupportedError:
    return ShareGroupsUnsupportedError(
        f"The broker at {where} has share groups switched off: an administrator has to set the cluster's feature"
        f" share.version to 1."
    )
