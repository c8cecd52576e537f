"""The assignor ``range``: a contiguous range of each topic for every member that subscribes to it. Pure.

Members stand in the same order for every topic, so topics with equally many partitions and the same subscribers are divided
alike. Members keep the order of the ranges that they had, and new members come after them, so a change moves what lies at the
borders of ranges. It costs O(members * log(members) + subscriptions + partitions).
"""

from uuid import UUID

from broker.kafka.groups.consumer.assignor_input import AssignorInput


def assign(given: AssignorInput) -> list[dict[UUID, frozenset[int]]]:
    """The partitions of each member."""
    place = {member: place for place, member in enumerate(_order(given))}
    found: list[dict[UUID, frozenset[int]]] = [{} for _ in given.previous]
    for topic_id, members in given.topic_subscribers().items():
        if not members:
            continue
        members.sort(key=place.__getitem__)
        quota, extra = divmod(given.partitions[topic_id], len(members))
        start = 0
        for number, member in enumerate(members):
            end = start + quota + (number < extra)
            if end == start:
                break  # more members than partitions
            found[member][topic_id] = frozenset(range(start, end))
            start = end
    return found


def _order(given: AssignorInput) -> list[int]:
    """Members by where their ranges began, as a share of the topic. Those that had none come last."""
    starts = []
    for previous in given.previous:
        start = 1.0
        for topic_id, partitions in previous.items():
            count = given.partitions.get(topic_id)
            if count:
                start = min(start, min(partitions) / count)
        starts.append(start)
    return sorted(range(len(starts)), key=starts.__getitem__)
