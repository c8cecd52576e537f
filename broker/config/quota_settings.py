"""How client quotas are measured. The quotas themselves are set with AlterClientQuotas and are kept in the catalogue.

Tests: tests/config/test_setting.py, tests/config/test_settings.py.
"""

import attrs

from broker.config.setting import setting


@attrs.frozen(kw_only=True, slots=False)
class QuotaSettings:
    """Quotas: the windows over which the rates of clients are measured."""

    quota_window_num: int = setting(
        11,
        least=2,
        most=1000,
        doc="Rates of clients are measured over this many windows, the last of which has only begun. Over the "
        "complete ones a client gets at most 2 % more than its quota: it may use at once what 2 % of that time allow.",
        reason="Kafka's default. With it 2 % are 0.2 s.",
    )
    quota_window_size_seconds: int = setting(
        1,
        least=1,
        most=3600,
        doc="The length of one such window in seconds. It is also the longest throttle time for `request_percentage`, "
        "whose use is forgotten after all windows.",
        reason="Kafka's default.",
    )
    controller_quota_window_num: int = setting(
        11,
        least=1,
        most=1000,
        doc="A client that has not changed partitions for this many windows may create or delete as many partitions at once "
        "as its `controller_mutation_rate` allows in them.",
        reason="Kafka's default.",
    )
    controller_quota_window_size_seconds: int = setting(
        1,
        least=1,
        most=3600,
        doc="The length of one such window in seconds.",
        reason="Kafka's default.",
    )
