"""Kafka's error codes, as an IntEnum with lower-case names: ``ErrorCode.unknown_topic_or_partition`` is 3."""

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode"]
