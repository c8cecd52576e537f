"""Partitions that are written and read in one process, without a broker or a network.

A ``LocalExchange`` connects writers and gates, which behave as with a broker. A pipelined subpartition can be read once, and
its writer waits when its reader is slow. A blocking one can be read when it is finished, any number of times, until it is
released. The readers of a failed producer get ProducerFailedError. Payloads of type ``bytes`` are passed on without a copy.
"""

from broker.client.shuffle.local.partition import LocalPartitions
from broker.client.shuffle.local.writer import LocalWriter
from broker.client.shuffle.names import PartitionLike, partition_id
from protocol.shuffle.generation import Generation
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_frames import PartitionType


class LocalExchange:
    """The partitions that writers and gates of one process share. ``buffers``: how many a pipelined subpartition may hold."""

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
        """Return a writer for a new partition."""
        return LocalWriter(self.partitions, partition_id(partition), subpartitions, type, generation, self._buffers)

    def release(self, partition: ResultPartitionID) -> bool:
        """Delete a partition. A writer that has not finished it fails. Returns False if the partition does not exist."""
        return self.partitions.release(partition)
