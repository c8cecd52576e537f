"""How much one micro-batch takes. Pure arithmetic on lags: what each partition has to read, in records. No partition with
a lag is left out for good: each gets one record at least.
"""

from collections.abc import Mapping

from broker.client.kafka.values import TopicPartition

Lags = Mapping[TopicPartition, int]


def share_records(lags: Lags, most: int) -> dict[TopicPartition, int]:
    """``most`` records over the partitions in proportion to their lags; all of each where they fit.

    The sum is ``most``, or the number of partitions that have a lag if that is more.
    """
    lags = {where: lag for where, lag in lags.items() if lag > 0}
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    shares = {where: max(1, most * lag // total) for where, lag in lags.items()}
    # What rounding down left over goes to those that it took most from.
    left = max(0, most - sum(shares.values()))
    rounded_down = [where for where, lag in lags.items() if most * lag >= total]
    for where in sorted(rounded_down, key=lambda one: (-(most * lags[one] % total), one))[:left]:
        shares[where] += 1
    return shares


def share_bytes(lags: Lags, record_bytes: Mapping[TopicPartition, float], most: int) -> dict[TopicPartition, int]:
    """Records of each partition, so that together they are about ``most`` bytes. ``record_bytes``: the mean of each."""
    lags = {where: lag for where, lag in lags.items() if lag > 0}
    total = sum(lag * record_bytes[where] for where, lag in lags.items())
    if total <= most:
        return dict(lags)
    return {where: max(1, min(lag, int(lag * most / total))) for where, lag in lags.items()}


def must_wait(lags: Lags, least: int, waited_ms: float, longest_ms: int) -> bool:
    """Whether the batch is put off: fewer than ``least`` records are there, and the last one is not too long ago."""
    return sum(lags.values()) < least and waited_ms < longest_ms
