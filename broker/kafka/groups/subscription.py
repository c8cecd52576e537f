"""Which topics the members of a consumer group subscribe to, read from the metadata that they join with.

Kafka's coordinator reads only what every version of the ConsumerProtocol subscription begins with: version (int16), then
an array of topic names. The rest belongs to the clients.
"""

from collections.abc import Iterable

from protocol.errors import ProtocolError
from protocol.wire import Reader

# The protocol type of consumers; Kafka Connect and others have their own and their own metadata.
CONSUMER = "consumer"


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members together; None if one of them cannot be read."""
    topics: set[str] = set()
    try:
        for one in metadata:
            reader = Reader(memoryview(one))
            if reader.i16() < 0:
                return None
            for _ in range(reader.array(smallest=2)):
                topics.add(reader.string())
    except ProtocolError:
        return None
    return frozenset(topics)
