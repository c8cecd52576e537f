"""How large the records of each partition are, by looking at a few: what maxBytesPerTrigger is reckoned with. On the driver,
which sees no record of the query; belongs to one ``StreamReader``.
"""

from collections.abc import Mapping

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.values import TopicPartition

# One batch is enough, and a broker sends the first one whole however large it is.
_SAMPLE_BYTES = 16 * 1024
# Each look is a connection and a fetch, 1-3 ms: all partitions once, then so many in turn with each micro-batch.
_LOOKS_PER_BATCH = 4


class RecordSizes:
    def __init__(self) -> None:
        # Bytes a record, as stored: with what compression left of it. In the order of the looks, the oldest first.
        self._mean: dict[TopicPartition, float] = {}

    def means(self, cluster: Cluster, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Bytes a record of the partitions in ``at``, which has the offsets to look at, each before the partition's end."""
        known = [where for where in self._mean if where in at]
        unknown = [where for where in at if where not in self._mean]
        for where in unknown + known[:_LOOKS_PER_BATCH]:
            mean = self._look(cluster, where, at[where])
            before = self._mean.pop(where, mean)
            self._mean[where] = (mean + before) / 2
        return {where: self._mean[where] for where in at}

    @staticmethod
    def _look(cluster: Cluster, where: TopicPartition, offset: int) -> float:
        with cluster.fetcher(*where, offset, offset + 1, max_bytes=_SAMPLE_BYTES) as fetcher:
            for fetched in fetcher:
                if fetched.data:
                    base = int.from_bytes(fetched.data[:8], "big")  # a record batch begins with its first offset
                    return len(fetched.data) / max(1, fetched.next_offset - base)
                break
        return 1.0  # nothing there after all (a transaction that is open): no limit is no harm
