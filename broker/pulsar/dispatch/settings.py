"""What dispatchers are told about limits and times: those of the broker, or of the topic's policies.

Tests: tests/pulsar/dispatch/test_dispatcher.py.
"""

import attrs


@attrs.frozen(kw_only=True)
class DispatchSettings:
    """The defaults are those of Pulsar's broker.conf, under the names in the comments."""

    # dispatcherMaxReadBatchSize, dispatcherMaxReadSizeBytes: one read.
    read_entries_max: int = 100
    read_bytes_max: int = 5 * 1024 * 1024
    # dispatcherMaxRoundRobinBatchSize: what a consumer of a Shared subscription gets before it is the next one's turn, in
    # messages.
    turn_messages: int = 20
    # maxUnackedMessagesPerConsumer, maxUnackedMessagesPerSubscription. 0: no limit (non-durable subscriptions).
    unacked_max_per_consumer: int = 50_000
    unacked_max_per_subscription: int = 200_000
    # Entries that a subscription has in flight or keeps to replay, whatever these limits are: some 200 bytes each. Nothing
    # new is read then. Pulsar has no such bound.
    in_flight_max: int = 1_000_000
    # keySharedLookAheadMsgInReplayThresholdPerConsumer, ...PerSubscription: entries that were read and wait for a consumer.
    look_ahead_per_consumer: int = 4_000
    look_ahead_max: int = 40_000
    # subscriptionKeySharedUseConsistentHashing, subscriptionKeySharedConsistentHashingReplicaPoints.
    consistent_hashing: bool = True
    hash_points: int = 100
    # activeConsumerFailoverDelayTimeMillis.
    failover_delay_s: float = 1.0
    # delayedDeliveryTickTimeMillis, isDelayedDeliveryDeliverAtTimeStrict.
    delayed_tick_ms: int = 1_000
    delayed_strict: bool = False
    # dispatcherReadFailureBackoffInitialTimeInMs, ...MaxTimeInMs. Pulsar begins with 15 s because a bookie has to come back;
    # a read of a local disk is worth another try sooner.
    read_retry_s: float = 1.0
    read_retry_max_s: float = 60.0
