"""Settings of the Pulsar service. Where Pulsar's broker.conf has one, the reason names it.

Tests: tests/config/test_setting.py, tests/config/test_settings.py.
"""

import attrs

from broker.config.setting import setting


@attrs.frozen(kw_only=True, slots=False)
class PulsarSettings:
    """Pulsar: topics and subscriptions on pulsar:// listeners."""

    pulsar_max_message_bytes: int = setting(
        5 * 1024 * 1024,
        kafka=None,
        least=1024,
        most=1024 * 1024 * 1024,
        doc="The largest message: metadata and payload of one SEND. Clients are told it when they connect, and cut larger "
        "messages into chunks.",
        reason="Pulsar's maxMessageSize.",
    )
    pulsar_namespaces: tuple[str, ...] = setting(
        ("public/default",),
        kafka=None,
        doc="Namespaces, each as tenant/namespace, that are there from the start. Others are made by admin calls.",
        reason="The one that standalone Pulsar has.",
    )
