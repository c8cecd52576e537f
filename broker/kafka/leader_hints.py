"""What a client is told about the leaders of partitions that this node does not have, or whose epoch it does not know (KIP-951).

Any thread. Only errors come here, and only of several nodes.

Tests: tests/process/test_nodes_hints.py.
"""

from collections.abc import Iterable

from broker.kafka.context import KafkaContext
from broker.network.service import Peer
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.leaders import Endpoint, Hints, Leader

# The errors after which a client looks for the leader.
TELLING = frozenset({int(ErrorCode.not_leader_or_follower), int(ErrorCode.fenced_leader_epoch)})


def hints(context: KafkaContext, peer: Peer, partitions: Iterable[tuple[str | bytes, int]]) -> Hints | None:
    """Of these partitions, by name or id of the topic. None: there is nothing to tell."""
    if context.nodes is None:
        return None
    leaders = {}
    for topic, partition in partitions:
        info = context.logs.topics_by_id.get(topic) if isinstance(topic, bytes) else context.logs.topic(topic)
        if info is not None and 0 <= partition < info.partitions:
            leader = context.leader_of(info.name, partition)
            if leader.is_there:
                leaders[topic, partition] = Leader(leader.node_id, leader.epoch)
    if not leaders:
        return None
    wanted = {leader.node_id for leader in leaders.values()}
    endpoints = [
        Endpoint(node.node_id, *node.endpoints[peer.listener], node.rack)
        for node in context.brokers(peer)
        if node.node_id in wanted
    ]
    known = {endpoint.node_id for endpoint in endpoints}
    return Hints({key: leader for key, leader in leaders.items() if leader.node_id in known}, endpoints)
