"""Consumers and producers with a bug each that tests without faults do not find, and what is right instead.
``test_classic_bugs.py`` runs this as a user's test module.
"""

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from broker.client import checks

# One batch of four, and two records that wait for another.
INPUTS = [str(number).encode() for number in range(6)]
SEEDS = 20
# What no client repeats by itself, so that the code under test has to deal with it.
PRODUCE_FAILS = {
    "kind": "error",
    "api": "PRODUCE",
    "topic": "bills",
    "error": ["INVALID_RECORD", "MESSAGE_TOO_LARGE"],
}
COMMIT_FAILS = {
    "kind": ["error", "error_after"],
    "api": "OFFSET_COMMIT",
    "error": ["GROUP_AUTHORIZATION_FAILED", "OFFSET_METADATA_TOO_LARGE"],
}
# What clients deal with, and nobody should notice.
HARMLESS = [
    {"kind": "reset", "api": ["FETCH", "METADATA", "FIND_COORDINATOR"]},
    {"kind": "delay", "api": ["PRODUCE", "FETCH", "OFFSET_COMMIT"], "delay_ms": [5, 20]},
    {"kind": "error", "api": ["FETCH", "LIST_OFFSETS"]},
]
TRIES = 8

pytestmark = pytest.mark.broker(settings={"group_initial_rebalance_delay_ms": 0})


# A client that waits less finds its way back sooner. Without the last one, a consumer that loses an answer about metadata may
# wait for minutes before it asks again.
SOON = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "topic.metadata.refresh.interval.ms": 300,
}


def settings(broker, more=None):
    return {**broker.client_settings, **SOON, "log_level": 0, **(more or {})}


def consumer_of(broker, more=None, **callbacks):
    options = {
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 20,
        # A consumer that cannot say that it leaves stays in the group for so long.
        "session.timeout.ms": 6000,
        "fetch.wait.max.ms": 20,
    }
    consumer = Consumer(settings(broker, {**options, **(more or {})}))
    consumer.subscribe(["orders"], **callbacks)
    return consumer


def messages(consumer):
    """Up to the last input."""
    while True:
        message = consumer.poll(30)
        assert message is not None, "nothing came within 30 s"
        if message.error():
            continue
        yield message
        if message.offset() == len(INPUTS) - 1:
            return


def again_after_a_crash(work):
    """As a process manager does it."""
    for _ in range(TRIES):
        try:
            return work()
        except KafkaException:
            pass
    raise AssertionError(f"crashed {TRIES} times")


def send(producer, value):
    """Write a bill, and wait until it is written. Raises KafkaException."""
    failed = []
    producer.produce("bills", value, on_delivery=lambda error, _message: failed.append(error))
    producer.flush()
    if failed[0] is not None:
        raise KafkaException(failed[0])


@pytest.fixture
def orders(broker):
    broker.create_topic("orders")
    broker.create_topic("bills")
    broker.produce("orders", INPUTS)


# -- commit before processing -----------------------------------------------------------------------------------------


def bill_all(broker, *, commits_first):
    producer = Producer(settings(broker))

    def work():
        consumer = consumer_of(broker)
        try:
            for message in messages(consumer):
                if commits_first:
                    consumer.commit(message, asynchronous=False)
                send(producer, message.value())
                if not commits_first:
                    consumer.commit(message, asynchronous=False)
        finally:
            consumer.close()

    again_after_a_crash(work)
    checks.processed_at_least_once(INPUTS, broker.records("bills"))


@pytest.mark.broker_chaos(seeds=SEEDS, faults=[PRODUCE_FAILS, *HARMLESS])
@pytest.mark.parametrize("commits_first", [True, False], ids=["bad", "good"])
def test_commit_before_processing(broker, orders, commits_first):
    bill_all(broker, commits_first=commits_first)


# -- at most once by mistake ------------------------------------------------------------------------------------------


@pytest.mark.broker_chaos(seeds=SEEDS, faults=[PRODUCE_FAILS, *HARMLESS])
@pytest.mark.parametrize("stores_at_poll", [True, False], ids=["bad", "good"])
def test_at_most_once_by_mistake(broker, orders, stores_at_poll):
    """The client commits by itself what poll() has returned, also when close() is called because the work has failed."""
    producer = Producer(settings(broker))

    def work():
        consumer = consumer_of(broker, {"enable.auto.commit": True, "enable.auto.offset.store": stores_at_poll})
        try:
            for message in messages(consumer):
                send(producer, message.value())
                if not stores_at_poll:
                    consumer.store_offsets(message)
        finally:
            consumer.close()

    again_after_a_crash(work)
    checks.processed_at_least_once(INPUTS, broker.records("bills"))


# -- a sink that is not idempotent ------------------------------------------------------------------------------------


@pytest.mark.broker_chaos(seeds=SEEDS, faults=[COMMIT_FAILS, *HARMLESS])
@pytest.mark.parametrize("is_idempotent", [False, True], ids=["bad", "good"])
def test_non_idempotent_sink(broker, orders, is_idempotent):
    rows = {}

    def work():
        consumer = consumer_of(broker)
        try:
            for message in messages(consumer):
                key = (message.topic(), message.partition(), message.offset())
                rows[key if is_idempotent else len(rows)] = message.value()
                consumer.commit(message, asynchronous=False)
        finally:
            consumer.close()

    again_after_a_crash(work)
    checks.processed_exactly_once(INPUTS, rows.values())


# -- a rebalance that is not handled ----------------------------------------------------------------------------------


@pytest.mark.broker_chaos(
    seeds=SEEDS, faults=[{"kind": "rebalance", "api": "OFFSET_COMMIT", "skip": [0, 1]}, *HARMLESS]
)
@pytest.mark.parametrize("forgets", [False, True], ids=["bad", "good"])
def test_lost_rebalance_callback(broker, orders, forgets):
    """Rows are written in batches of four. After a rebalance the client reads again what is not committed, so a batch that was
    begun must be forgotten."""
    rows, batch = [], []
    late, beats = [b"6", b"7"], None

    def forget(_consumer, _partitions):
        if forgets:
            batch.clear()

    def write():
        rows.extend(message.value() for message in batch)
        consumer.commit(batch[-1], asynchronous=False)
        batch.clear()

    consumer = consumer_of(broker, on_revoke=forget, on_lost=forget)
    try:
        while len(rows) < len(INPUTS) + 2:
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                batch.append(message)
                if len(batch) == 4:
                    write()
            # The second batch waits for its last two records until the consumer has heard of a rebalance, if there was one.
            if rows and beats is None:
                beats = broker.faults.add("observe", api="HEARTBEAT", count=None)
            if beats is not None and beats.hits >= 2 and late:
                broker.produce("orders", late)
                late = []
    finally:
        consumer.close()
    checks.processed_exactly_once([*INPUTS, b"6", b"7"], rows)


# -- a producer that ignores delivery errors --------------------------------------------------------------------------


@pytest.mark.broker_chaos(seeds=SEEDS, faults=[PRODUCE_FAILS, *HARMLESS])
@pytest.mark.parametrize("looks", [False, True], ids=["bad", "good"])
def test_ignored_delivery_errors(broker, orders, looks):
    producer = Producer(settings(broker))
    failed = []

    def delivered(error, message):
        if error is not None and looks:
            failed.append(message.value())

    failed.extend(INPUTS)
    for _ in range(TRIES):
        values, failed = failed, []
        for value in values:
            producer.produce("bills", value, on_delivery=delivered)
            producer.poll(0)
        producer.flush()
    checks.processed_at_least_once(INPUTS, broker.records("bills"))


# -- a transaction that is not aborted --------------------------------------------------------------------------------


@pytest.mark.broker_chaos(
    seeds=SEEDS,
    faults=[
        PRODUCE_FAILS,
        {"kind": "error", "api": "TXN_OFFSET_COMMIT", "error": "GROUP_AUTHORIZATION_FAILED"},
        *HARMLESS,
    ],
)
@pytest.mark.parametrize("aborts", [False, True], ids=["bad", "good"])
def test_transaction_without_abort(broker, orders, aborts):
    producer = Producer(settings(broker, {"transactional.id": "billing"}))
    producer.init_transactions(10)

    def work():
        consumer = consumer_of(broker)
        try:
            for message in messages(consumer):
                try:
                    producer.begin_transaction()
                    producer.produce("bills", message.value())
                    ends = consumer.position(consumer.assignment())
                    producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), 10)
                    producer.commit_transaction(10)
                except KafkaException:
                    if aborts:
                        producer.abort_transaction(10)
                    raise
        finally:
            consumer.close()

    again_after_a_crash(work)
    checks.processed_exactly_once(INPUTS, broker.records("bills"))
