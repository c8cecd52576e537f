"""Which topics the members of a consumer group subscribe to, read from the metadata that they join with.

Kafka's coordinator reads only what every version of the ConsumerProtocol subscription begins with: version (int16), then
an array of topic names. The rest belongs to the clients.
"""

from collections.abc import Iterable

from protocol.errors import ProtocolError
from protocol.kafka.messages.consumer_protocol import parse_subscribed_topics

# The protocol type of consumers; Kafka Connect and others have their own and their own metadata.
CONSUMER = "consumer"
# Names that are read of one generation; more would take too long for whoever waits for the group's lock. 0.1 s on a slow core;
# 1,000 members with 100 topics each.
_NAMES_MAX = 100_000


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members together; None if one of them cannot be read, or if they are too many to read."""
    topics: set[str] = set()
    left = _NAMES_MAX
    try:
        for one in set(metadata):  # most members send the same
            names = parse_subscribed_topics(one, left)
            left -= len(names)
            topics.update(names)
    except ProtocolError:
        return None
    return frozenset(topics)
