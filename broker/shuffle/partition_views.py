"""``/api/v1/shuffle``: result partitions, with the back-pressure of each channel as Flink's page shows it.

A channel is a subpartition with its reader. A reader with data and without credit is blocked by its consumer, a reader without
data waits for the producer, and a writer without credit is blocked by its readers or by the broker's memory. Figures are read
from fields that processors change; those of one answer may be some microseconds apart.

Tests: tests/shuffle/views/test_partitions.py.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from broker.security.acl import Operation, ResourceType
from broker.shuffle.partition.budget import Budget
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.partitions import Partitions
from broker.shuffle.rights import PREFIX
from broker.shuffle.serving.view import View
from broker.web.callers import Callers
from broker.web.history import Figures
from broker.web.routes import Answer, Call, Route, json_answer, page_of

# The most readers shown of a partition, and of all partitions of a page.
_READERS_MAX: Final = 1000
_ALL_READERS_MAX: Final = 5000
# The most subpartitions of a reader for which sent buffers are summed.
_SUMMED_MAX: Final = 64


class PartitionViews:
    def __init__(self, partitions: Partitions, budget: Budget, callers: Callers) -> None:
        self._partitions = partitions
        self._budget = budget
        self._callers = callers

    def routes(self) -> list[Route]:
        return [self._callers.protected(Route("GET", "/api/v1/shuffle", self.page))]

    def add_figures(self, figures: Figures) -> None:
        figures.whole["shuffle_partitions"] = lambda: len(self._partitions)
        figures.whole["shuffle_memory_bytes"] = lambda: self._budget.memory
        figures.whole["shuffle_disk_bytes"] = lambda: self._budget.disk

    def page(self, call: Call) -> Answer:
        callers = self._callers
        visible = {
            each.id.hex(): each
            for each in call.work.each(self._partitions.present())
            if callers.may(call, Operation.DESCRIBE, ResourceType.TOPIC, PREFIX + each.owner)
        }
        page, following = page_of(call, visible)
        left = _ALL_READERS_MAX
        partitions = []
        for name in call.work.each(page):
            shown = _partition(name, visible[name], min(left, _READERS_MAX))
            left -= len(shown["readers"])
            partitions.append(shown)
        budget = self._budget
        return json_answer(
            {
                "memory": {"used": budget.memory, "capacity": budget.memory_max},
                "disk": {"used": budget.disk, "capacity": budget.disk_max if budget.disk_max >= 0 else None},
                "partitions": partitions,
                "next": following,
            }
        )


def _partition(name: str, partition: ResultPartition, readers_max: int) -> dict[str, Any]:
    with partition.lock:
        readers = [each for each in islice(partition.readers, readers_max) if isinstance(each, View)]
        holdings = partition.holdings
        memory, disk, buffers = holdings.memory, holdings.disk, holdings.buffers
        unsent = holdings.unsent
        writer = partition.lease.listener
    waits, credit = partition.writer_waits, 0 if writer is None else writer.credit
    return {
        "id": name,
        "name": str(partition.id),
        "type": partition.kind.name,
        "state": partition.life.name,
        "owner": partition.owner,
        "subpartitions": len(partition.subpartitions),
        "bytes": memory + disk,
        "memory_bytes": memory,
        "spilled": disk,
        "buffers": buffers,
        "unsent_bytes": unsent if partition.pipelined else None,
        "writer": None if writer is None else {"peer": writer.peer, "credit": credit},
        "writer_blocked": waits and not credit,
        "writer_blocked_by": _why(partition) if waits else None,
        "readers": list(_readers(readers)),
        "reader_count": len(partition.readers),
    }


def _why(partition: ResultPartition) -> str:
    """What blocks a writer that waits for credit."""
    return "readers" if partition.waits_for_readers else "memory"


def _readers(views: Iterable[View]) -> Iterable[dict[str, Any]]:
    for view in views:
        indices = view.indices
        backlog, sent = view.waiting, None
        if len(indices) <= _SUMMED_MAX:
            parts = view.partition.subpartitions[indices.start : indices.stop]
            sent = max(0, sum(part.data_total for part in parts if part is not None) - backlog)
        yield {
            "subpartition": indices.start,
            "subpartitions": len(indices),
            "peer": view.peer,
            "credit": view.credit.credits,
            "backlog": backlog,
            "sent": sent,
            "blocked": view.credit.blocked,
            "back_pressured": backlog > 0 and view.credit.credits == 0,
            "finished": view.finished,
        }
