"""Estimates how large the records of each partition are, by samples, for maxBytesPerTrigger.

It runs on the driver, which sees no records of the query. A ``RecordSizes`` belongs to one ``StreamReader``.

Tests: tests/spark/source/test_stream_source.py.
"""

from collections.abc import Mapping

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.values import TopicPartition

# One batch is enough, and a broker sends the first batch whole, however large it is.
_SAMPLE_BYTES = 16 * 1024
# A sample costs a connection and a fetch, 1-3 ms: each partition is sampled once, then this many in turn per micro-batch.
_SAMPLES_PER_BATCH = 4


class RecordSizes:
    def __init__(self) -> None:
        # Bytes per record as stored, after compression. In the order of the samples, the oldest first.
        self._mean: dict[TopicPartition, float] = {}

    def means(self, cluster: Cluster, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Bytes per record of the partitions in ``at``, which has an offset to sample for each, before the partition's end."""
        known = [where for where in self._mean if where in at]
        unknown = [where for where in at if where not in self._mean]
        for where in unknown + known[:_SAMPLES_PER_BATCH]:
            mean = self._sample(cluster, where, at[where])
            before = self._mean.pop(where, mean)
            self._mean[where] = (mean + before) / 2
        return {where: self._mean[where] for where in at}

    @staticmethod
    def _sample(cluster: Cluster, where: TopicPartition, offset: int) -> float:
        with cluster.fetcher(*where, offset, offset + 1, max_bytes=_SAMPLE_BYTES) as fetcher:
            for fetched in fetcher:
                if fetched.data:
                    base = int.from_bytes(fetched.data[:8], "big")  # a record batch begins with its first offset
                    return len(fetched.data) / max(1, fetched.next_offset - base)
                break
        return 1.0  # no record yet (an open transaction): then a batch without a limit does no harm
