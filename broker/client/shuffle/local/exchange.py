"""Partitions that are written and read in one process: no broker, no network, no copies.

A ``LocalExchange`` is where the two sides meet. Writers and gates behave as with a broker: a pipelined subpartition is read
once and holds back its writer when its reader is slow; a blocking one is read when it is finished, any number of times,
until it is released; the readers of a failed producer get ProducerFailedError.
"""

from broker.client.shuffle.local.partition import LocalPartitions
from broker.client.shuffle.local.writer import LocalWriter
from broker.client.shuffle.names import PartitionLike, partition_id
from protocol.shuffle.generation import Generation
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType


class LocalExchange:
    """Where writers and gates of one process find each other. ``buffers``: how many a pipelined subpartition may hold."""

    def __init__(self, buffers: int = 16) -> None:
        self._buffers = buffers
        self.partitions = LocalPartitions()

    def writer(
        self,
        partition: PartitionLike,
        subpartitions: int,
        type: PartitionType | str = PartitionType.PIPELINED,
        *,
        generation: Generation | str = Generation.V2_0,
    ) -> LocalWriter:
        """A writer for a new partition."""
        return LocalWriter(self.partitions, partition_id(partition), subpartitions, type, generation, self._buffers)

    def release(self, partition: ResultPartitionID) -> bool:
        """Forget a partition; a writer that has not finished it fails. False if there is none."""
        return self.partitions.release(partition)
