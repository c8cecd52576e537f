"""Share groups over several nodes: what a group's coordinator leaves in the catalogue for the owners of partitions.

The coordinator has the members; each partition's owner has the states of its records, and writes their row. Three things the
coordinator decides for partitions that other nodes own:

- *A group begins with a partition.* The coordinator makes a row without an offset (``UNBEGUN``). The owner finds the first offset
  when a member fetches, and lets nobody begin without a row: it does not know which groups there are.
- *An administrator sets offsets*, or *the state is forgotten*: an order for each other node, a document of the kind ``ORDERS``,
  which the node carries out and removes. The nodes hear of it as of every change of the catalogue, so whoever waits for them
  (``Nodes.settle``) knows that it is done. A node that is not there finds its orders when it starts.

Rows that are forgotten are removed with the order, and the owner removes only what it may have written since: never ``UNBEGUN``,
by which the group, or another one of its name, has begun anew.

Any thread. It keeps no state but a counter.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any

import attrs

from broker.cluster.nodes import ORDERS, Nodes
from broker.kafka.share.share_store import KIND, Key, ShareState
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, Change
from broker.runtime.clock import Clock

log = get_logger("kafka")

# The row of a share partition that its owner has not seen yet.
UNBEGUN = ShareState(0, -1, (), ()).encode()


@attrs.frozen
class Order:
    """``offsets``: the start offsets to set, by topic id and partition. None: forget the group's state of the topics with these
    ids, or (None) of all."""

    document: str
    group_id: str
    offsets: Mapping[tuple[bytes, int], int] | None
    topic_ids: frozenset[bytes] | None


class OtherNodes:
    def __init__(self, nodes: Nodes, catalogue: Catalogue, clock: Clock) -> None:
        self._nodes = nodes
        self._catalogue = catalogue
        self._clock = clock
        self._numbers = count()

    def coordinate(self, group_id: str) -> bool:
        """Whether the group's coordinator is another node."""
        return not self._nodes.coordinates(group_id)

    def own(self, topic: str, partition: int) -> bool:
        """Whether the partition's owner is another node."""
        return not self._nodes.has_partition(topic, partition)

    def all_rows(self, group_id: str) -> dict[str, bytes]:
        """The group's rows in the catalogue, by their keys' texts; perhaps also some of a group whose id begins with this one.
        Raises StorageError."""
        return dict(self._catalogue.load_documents(KIND, f"{group_id}\0"))

    def rows(self, group_id: str) -> dict[Key, bytes]:
        """The group's rows that have an offset. Raises StorageError."""
        rows = {Key.parse(text): row for text, row in self.all_rows(group_id).items() if row != UNBEGUN}
        return {key: row for key, row in rows.items() if key.group_id == group_id}

    def set_offsets(self, group_id: str, offsets: Mapping[tuple[bytes, int], int]) -> None:
        """Have the owners do it. Durable when this returns. Raises StorageError."""
        rows = [(KIND, Key(group_id, *partition).text, UNBEGUN) for partition in offsets]
        texts = [[topic_id.hex(), number, offset] for (topic_id, number), offset in offsets.items()]
        orders = self._orders(group_id, {"offsets": texts})
        self._catalogue.together(
            [lambda catalogue: catalogue.add_documents(rows), lambda catalogue: catalogue.alter_documents(orders)]
        )

    def forget(self, group_id: str, topic_ids: Collection[bytes] | None, known: Iterable[bytes]) -> Change:
        """A change of the catalogue: have the owners forget the group's state of these topics, or (None) of all; ``known``:
        all topics that there are."""
        every = topic_ids is None
        orders = self._orders(group_id, {"topics": None if topic_ids is None else [each.hex() for each in topic_ids]})
        if every and "\0" not in group_id:
            prefixes = [f"{group_id}\0"]
        else:  # such a prefix might be that of another group
            prefixes = [f"{group_id}\0{each.hex()}\0" for each in (known if topic_ids is None else topic_ids)]
        removals = [partial(_delete, prefix) for prefix in prefixes]
        return partial(_together, [*removals, lambda catalogue: catalogue.alter_documents(orders)])

    def _orders(self, group_id: str, what: dict[str, Any]) -> list[tuple[str, str, bytes]]:
        # In the order of their numbers. One coordinator gives those of a group.
        number = f"{self._clock.time_ms():015d}{next(self._numbers):09d}"
        body = json.dumps({"group": group_id, **what}).encode()
        others = [place for place in range(self._nodes.count) if place != self._nodes.place]
        return [(ORDERS, f"{place}\0{number}\0{self._nodes.place}", body) for place in others]

    def orders(self) -> list[Order]:
        """Those for this node, the oldest first, without offsets that were forgotten afterwards: the group may have begun anew
        meanwhile. Raises StorageError."""
        found: list[Order] = []
        for document, body in sorted(self._catalogue.load_documents(ORDERS, f"{self._nodes.place}\0")):
            try:
                order = _order(document, json.loads(body))
                if order.offsets is None:
                    found = [_without(each, order) for each in found]
                found.append(order)
            except (ValueError, KeyError, TypeError) as error:
                log.error("share_order_unreadable", order=document, error=str(error))
                self.carried_out(document)
        return found

    def carried_out(self, document: str) -> None:
        """Raises StorageError."""
        self._catalogue.alter_documents([(ORDERS, document, None)])


def _order(document: str, body: dict[str, Any]) -> Order:
    if "offsets" in body:
        offsets = {(bytes.fromhex(topic_id), int(number)): int(offset) for topic_id, number, offset in body["offsets"]}
        return Order(document, str(body["group"]), offsets, None)
    topics = body["topics"]
    return Order(document, str(body["group"]), None, None if topics is None else frozenset(map(bytes.fromhex, topics)))


def _without(order: Order, forgotten: Order) -> Order:
    if order.group_id != forgotten.group_id or order.offsets is None:
        return order
    ids = forgotten.topic_ids
    left = {} if ids is None else {each: offset for each, offset in order.offsets.items() if each[0] not in ids}
    return attrs.evolve(order, offsets=left)


def remove_begun(catalogue: Catalogue, keys: Iterable[Key]) -> None:
    """Remove these rows unless they are ``UNBEGUN``. Raises StorageError."""
    catalogue.delete_other_documents(KIND, [key.text for key in keys], UNBEGUN)


def add_unbegun(catalogue: Catalogue, keys: Iterable[Key]) -> None:
    """Raises StorageError."""
    catalogue.add_documents([(KIND, key.text, UNBEGUN) for key in keys])


def _delete(prefix: str, catalogue: Catalogue) -> None:
    catalogue.delete_documents(KIND, prefix)


def _together(changes: list[Change], catalogue: Catalogue) -> None:
    catalogue.together(changes)
