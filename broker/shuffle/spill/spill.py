"""What the spiller knows of one partition beside what the partition holds.

Tests: tests/shuffle/spill/test_spiller.py.
"""

from typing import Self

from broker.runtime.open_files import CachedFile
from broker.shuffle.partition.result_partition import ResultPartition
from broker.shuffle.spill.spill_state import SpillEvent, SpillState, next_state


class Spill:
    """``state`` is guarded by the partition's lock; the rest belongs to the spiller's thread."""

    __slots__ = ("named_file", "next_subpartition", "partition", "state")

    def __init__(self, partition: ResultPartition) -> None:
        self.partition = partition
        self.state = SpillState.IDLE
        self.named_file: CachedFile | None = None  # of a blocking partition: its file, known until it is removed
        self.next_subpartition = 0  # whose turn it is to be written

    @classmethod
    def stored(cls, partition: ResultPartition, file: CachedFile) -> Self:
        """Of a partition that an earlier broker has stored."""
        spill = cls(partition)
        spill.state = SpillState.STORED
        spill.named_file = file
        return spill

    def note(self, event: SpillEvent) -> None:
        """With the partition's lock held."""
        self.state = next_state(self.state, event)
