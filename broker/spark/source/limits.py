"""How many records one micro-batch reads of each partition. Pure arithmetic on lags, the numbers of records not yet read.

Every partition with a lag gets at least one record, so none is starved.
"""

from collections.abc import Mapping

from broker.client.kafka.values import TopicPartition

Lags = Mapping[TopicPartition, int]


def share_records(lags: Lags, most: int) -> dict[TopicPartition, int]:
    """Distribute ``most`` records over the partitions in proportion to their lags, or all records if they are no more.

    The sum is ``most``, or the number of partitions that have a lag if that is more.
    """
    lags = {where: lag for where, lag in lags.items() if lag > 0}
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    shares = {where: max(1, most * lag // total) for where, lag in lags.items()}
    # The records left over by rounding down go to the partitions that lost most by it.
    left_over = max(0, most - sum(shares.values()))
    rounded_down = [where for where, lag in lags.items() if most * lag >= total]
    for where in sorted(rounded_down, key=lambda where: (-(most * lags[where] % total), where))[:left_over]:
        shares[where] += 1
    return shares


def share_bytes(lags: Lags, record_bytes: Mapping[TopicPartition, float], most: int) -> dict[TopicPartition, int]:
    """Records of each partition that together have about ``most`` bytes. ``record_bytes``: the mean size per partition."""
    lags = {where: lag for where, lag in lags.items() if lag > 0}
    total = sum(lag * record_bytes[where] for where, lag in lags.items())
    if total <= most:
        return dict(lags)
    return {where: max(1, min(lag, int(lag * most / total))) for where, lag in lags.items()}


def must_wait(lags: Lags, least: int, waited_ms: float, longest_ms: int) -> bool:
    """Whether to postpone the batch: fewer than ``least`` records exist, and the last batch was not too long ago."""
    return sum(lags.values()) < least and waited_ms < longest_ms
