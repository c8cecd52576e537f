"""Mistakes for ``planted.py``: of several nodes."""

from typing import Any

import attrs

from broker.kafka.transactions.marker_writer import Markers
from broker.kafka.transactions.neighbours import Neighbours
from broker.kafka.transactions.transaction import GROUP
from broker.kafka.transactions.version_2 import FirstBatches
from broker.network.sending import Sending
from broker.server.seat import FeedWatch


def change_missed(right: Any) -> Any:
    def take_in(self: FeedWatch, table: str, version: int) -> bool:
        if table != "topics" or version < 6:
            return bool(right(self, table, version))
        self._known[table] = version
        return True

    return take_in


def never_looks(_: Any) -> Any:
    return 1e9


def not_settled(_: Any) -> Any:
    return lambda self: True


def silence_is_done(right: Any) -> Any:
    def is_done(self: Any, key: Any, error: Any) -> bool:
        return error is None or bool(right(self, key, error))

    return is_done


def marker_to_nobody(_: Any) -> Any:
    def write(self: Neighbours, markers: Markers) -> None:
        self._own.write(markers)

    return write


def groups_not_told(right: Any) -> Any:
    def write(self: Neighbours, markers: Markers) -> None:
        right(self, attrs.evolve(markers, partitions=frozenset(key for key in markers.partitions if key[1] != GROUP)))

    return write


def verification_skipped(_: Any) -> Any:
    def ask(self: Any, transactional_id: str, version: int, wanted: Any, first: FirstBatches, done: Any) -> None:
        for claim, log in wanted.values():
            self._remember(claim.producer_id, transactional_id)
            log.transactions.allow(claim.producer_id, claim.epoch)
        done()

    return ask


def everybody_coordinates(_: Any) -> Any:
    return lambda self, key: True


def pending_always_committed(right: Any) -> Any:
    def end(self: Any, producer_id: int, group: str, commit: bool, done: Any) -> None:
        right(self, producer_id, group, True, done)

    return end


def answers_without_lease(_: Any) -> Any:
    return Sending.flush
