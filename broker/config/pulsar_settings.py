"""Settings of the Pulsar service. If Pulsar's broker.conf has the setting, the reason names it.

Tests: tests/config/test_setting.py, tests/config/test_settings.py.
"""

import attrs

from broker.config.setting import own_setting


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class PulsarSettings:
    """Pulsar: topics and subscriptions on pulsar:// listeners."""

    pulsar_max_message_bytes: int = own_setting(
        5 * 1024 * 1024,
        least=1024,
        most=1024 * 1024 * 1024,
        doc="The largest message: metadata and payload of one SEND. Clients are told it when they connect, and cut larger "
        "messages into chunks.",
        reason="Pulsar's maxMessageSize.",
    )
    pulsar_cache_bytes: int = own_setting(
        64 * 1024 * 1024,
        least=0,
        doc="Memory for recent messages of all topics, from which consumers at the end of a topic are served. 0: none, every "
        "message is read from the log.",
        reason="Pulsar's managedLedgerCacheSizeMB is a fifth of its memory. Here, the rest comes from the page cache.",
    )
    pulsar_reader_threads: int = own_setting(
        4,
        least=1,
        most=64,
        doc="Threads that read messages from the log which are not in memory, and translate those of Kafka producers.",
        reason="Half of them read for one topic at a time, so one whose reads are slow holds up no other.",
    )
    pulsar_message_expiry_check_interval_ms: int = own_setting(
        300_000,
        least=100,
        doc="How often messages that are older than the TTL of their topic are looked for, and subscriptions that have not been "
        "used for as long as their namespace allows.",
        reason="Pulsar's messageExpiryCheckIntervalInMinutes.",
    )
    pulsar_backlog_quota_check_interval_ms: int = own_setting(
        60_000,
        least=100,
        doc="How often backlog quotas are enforced, and topics are deleted that have been inactive for as long as their policy "
        "allows. A producer that connects is checked against the quota at once.",
        reason="Pulsar's backlogQuotaCheckIntervalInSeconds.",
    )
    pulsar_namespaces: tuple[str, ...] = own_setting(
        ("public/default",),
        doc="Namespaces, each as tenant/namespace, that are there from the start. Others are made by admin calls.",
        reason="The one that standalone Pulsar has.",
    )
    pulsar_keep_alive_interval_ms: int = own_setting(
        30_000,
        least=0,
        doc="A client that has been silent for so long gets a PING, and is disconnected if it is silent for as long again. "
        "0: connections are closed only for being idle (connections_max_idle_ms).",
        reason="Pulsar's keepAliveIntervalSeconds.",
    )
    pulsar_max_producers_per_topic: int = own_setting(
        0,
        least=0,
        doc="How many producers a topic, or a partition of one, may have at a time. 0: any number.",
        reason="Pulsar's maxProducersPerTopic.",
    )
    pulsar_max_subscriptions_per_topic: int = own_setting(
        10_000,
        least=0,
        doc="How many subscriptions a topic, or a partition of one, may have. 0: any number.",
        reason="Pulsar's maxSubscriptionsPerTopic, which is unlimited; each takes about 2 KB and a row of the catalogue.",
    )
    pulsar_max_consumers_per_topic: int = own_setting(
        0,
        least=0,
        doc="How many consumers a topic, or a partition of one, may have at a time. 0: any number.",
        reason="Pulsar's maxConsumersPerTopic.",
    )
    pulsar_max_consumers_per_subscription: int = own_setting(
        0,
        least=0,
        doc="How many consumers a subscription may have at a time, for each partition. 0: any number.",
        reason="Pulsar's maxConsumersPerSubscription.",
    )
    pulsar_max_unacked_per_consumer: int = own_setting(
        50_000,
        least=0,
        doc="How many messages a consumer of a Shared or Key_Shared subscription may have that it has not acknowledged, before "
        "it is sent no more. 0: any number.",
        reason="Pulsar's maxUnackedMessagesPerConsumer.",
    )
    pulsar_max_unacked_per_subscription: int = own_setting(
        200_000,
        least=0,
        doc="The same for all consumers of such a subscription together. 0: any number.",
        reason="Pulsar's maxUnackedMessagesPerSubscription.",
    )
    pulsar_key_shared_consistent_hashing: bool = own_setting(
        True,
        doc="Keys are shared out among the consumers of a Key_Shared subscription by consistent hashing. If false, a new "
        "consumer takes half of the largest range of hashes.",
        reason="Pulsar's subscriptionKeySharedUseConsistentHashing.",
    )
    pulsar_failover_delay_ms: int = own_setting(
        1_000,
        least=0,
        most=3_600_000,
        doc="How long after a change the consumer of a Failover subscription that is served from then on gets its first message.",
        reason="Pulsar's activeConsumerFailoverDelayTimeMillis.",
    )
    pulsar_delayed_delivery_tick_ms: int = own_setting(
        1_000,
        least=1,
        most=3_600_000,
        doc="How exactly delayed messages are delivered: so late at most, or, if `pulsar_delayed_delivery_strict` is false, so "
        "early.",
        reason="Pulsar's delayedDeliveryTickTimeMillis.",
    )
    pulsar_delayed_delivery_strict: bool = own_setting(
        True,
        doc="Delayed messages are never delivered early.",
        reason="Pulsar's isDelayedDeliveryDeliverAtTimeStrict is false; a message that comes early surprises more than one that "
        "is late.",
    )
    pulsar_auto_create_topics: bool = own_setting(
        True,
        doc="Topics are made when producers and consumers ask for them.",
        reason="Pulsar's allowAutoTopicCreation.",
    )
    pulsar_auto_topic_partitions: int = own_setting(
        0,
        least=0,
        most=1000,
        doc="How many partitions such a topic has. 0: it is not partitioned.",
        reason="Pulsar's allowAutoTopicCreationType, which is non-partitioned, with defaultNumPartitions.",
    )
    pulsar_token_secret_key: str | None = own_setting(
        None,
        secret=True,
        of_listener=True,
        doc="The key with which the tokens (JWT with HS256, HS384 or HS512) of clients of `pulsar+sasl` listeners are checked: "
        "in base64, or a URL that begins with `file:///`. Unset: tokens are those of OAUTHBEARER.",
        reason="Pulsar's tokenSecretKey.",
    )
    pulsar_anonymous_user: str | None = own_setting(
        None,
        of_listener=True,
        doc="Who a client of a `pulsar+sasl` listener is that does not say who it is. Unset: it is refused.",
        reason="Pulsar's anonymousUserRole.",
    )
    pulsar_deduplication: bool = own_setting(
        False,
        doc="Messages that a producer sends again are not stored again, in all topics for which no policy says otherwise.",
        reason="Pulsar's brokerDeduplicationEnabled.",
    )
    pulsar_dispatch_rate_messages: int = own_setting(
        0,
        least=0,
        doc="Messages a second that all subscriptions together are sent. 0: no limit. Topics and subscriptions have policies of "
        "their own for it.",
        reason="Pulsar's dispatchThrottlingRateInMsg.",
    )
    pulsar_dispatch_rate_bytes: int = own_setting(
        0, least=0, doc="The same in bytes a second.", reason="Pulsar's dispatchThrottlingRateInByte."
    )
