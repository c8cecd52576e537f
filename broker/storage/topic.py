"""A topic as a value, and the rules for its name and its number of partitions.

No thread, no lock, no I/O: ``log_manager.py`` owns the topics there are.
"""

import re
import uuid
from collections.abc import Mapping

import attrs

from broker.metadata.catalogue import TopicRow
from broker.storage.refusals import InvalidTopicName

# Kafka's Topic.MAX_NAME_LENGTH: with "-" and the number of a partition it is a file name.
LONGEST_NAME = 249
# Of one topic. A larger number is more likely a typing error, or the name of a directory that is not a partition's, than meant.
MOST_PARTITIONS = 100_000

_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{LONGEST_NAME}}}")


@attrs.frozen
class TopicInfo:
    """A topic as it is now. ``configs`` holds only what it sets itself. ``version`` rises with each change."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    version: int = 0

    def row(self) -> TopicRow:
        return TopicRow(self.name, self.topic_id, self.partitions, self.configs)


def check_name(name: str) -> None:
    """Raises InvalidTopicName for a name that Kafka does not allow."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicName(
            f"Topic name {name[:300]!r} is not allowed: it has 1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 . _ -"
        )


def collision_key(name: str) -> str:
    """Two topics with the same key cannot exist side by side. Kafka takes "." and "_" for the same: metrics could not tell the
    topics apart."""
    return name.replace(".", "_")
