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
    pulsar_cache_bytes: int = setting(
        64 * 1024 * 1024,
        kafka=None,
        least=0,
        doc="Memory for recent messages of all topics, from which consumers at the end of a topic are served. 0: none, every "
        "message is read from the log.",
        reason="Pulsar's managedLedgerCacheSizeMB is a fifth of its memory. Here, the rest comes from the page cache.",
    )
    pulsar_reader_threads: int = setting(
        4,
        kafka=None,
        least=1,
        most=64,
        doc="Threads that read messages from the log which are not in memory, and translate those of Kafka producers.",
        reason="So many slow reads may wait for the disk before those of other topics wait for them.",
    )
    pulsar_namespaces: tuple[str, ...] = setting(
        ("public/default",),
        kafka=None,
        doc="Namespaces, each as tenant/namespace, that are there from the start. Others are made by admin calls.",
        reason="The one that standalone Pulsar has.",
    )
    pulsar_keep_alive_interval_ms: int = setting(
        30_000,
        kafka=None,
        least=0,
        doc="A client that has been silent for so long gets a PING, and is disconnected if it is silent for as long again. "
        "0: connections are closed only for being idle (connections_max_idle_ms).",
        reason="Pulsar's keepAliveIntervalSeconds.",
    )
    pulsar_max_producers_per_topic: int = setting(
        0,
        kafka=None,
        unit="",
        least=0,
        doc="How many producers a topic, or a partition of one, may have at a time. 0: any number.",
        reason="Pulsar's maxProducersPerTopic.",
    )
    pulsar_auto_create_topics: bool = setting(
        True,
        kafka=None,
        doc="Topics are made when producers and consumers ask for them.",
        reason="Pulsar's allowAutoTopicCreation.",
    )
    pulsar_auto_topic_partitions: int = setting(
        0,
        kafka=None,
        unit="",
        least=0,
        most=1000,
        doc="How many partitions such a topic has. 0: it is not partitioned.",
        reason="Pulsar's allowAutoTopicCreationType, which is non-partitioned, with defaultNumPartitions.",
    )
    pulsar_token_secret_key: str | None = setting(
        None,
        kafka=None,
        secret=True,
        of_listener=True,
        doc="The key with which the tokens (JWT with HS256, HS384 or HS512) of clients of `pulsar+sasl` listeners are checked: "
        "in base64, or a URL that begins with `file:///`. Unset: tokens are those of OAUTHBEARER.",
        reason="Pulsar's tokenSecretKey.",
    )
    pulsar_anonymous_user: str | None = setting(
        None,
        kafka=None,
        unit="",
        of_listener=True,
        doc="Who a client of a `pulsar+sasl` listener is that does not say who it is. Unset: it is refused.",
        reason="Pulsar's anonymousUserRole.",
    )
    pulsar_deduplication: bool = setting(
        False,
        kafka=None,
        doc="Messages that a producer sends again are not stored again, in all topics for which no policy says otherwise.",
        reason="Pulsar's brokerDeduplicationEnabled.",
    )
