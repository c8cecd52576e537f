"""Statistics of topics, asked of a whole broker with the real client on it."""

from datetime import timedelta

from tests.pulsar.admin.harness import PERSISTENT, Admin
from tests.pulsar.clients import client
from tests.waiting import wait_for


def test_topic_stats_match_figures_of_its_clients(admin: Admin) -> None:
    with client(admin.service_url) as pulsar:
        consumer = pulsar.subscribe("t", "s", consumer_name="c", receiver_queue_size=100)
        producer = pulsar.create_producer("t", producer_name="p")
        for number in range(10):
            producer.send(b"%d" % number)
        for _ in range(4):
            consumer.acknowledge(consumer.receive(30_000))
        stats = admin.get(f"{PERSISTENT}/t/stats")
        assert 10 == stats["msgInCounter"]
        assert ["p"] == [one["producerName"] for one in stats["publishers"]]
        assert ["Shared"] == [one["accessMode"] for one in stats["publishers"]]
        of = stats["subscriptions"]["s"]
        assert ("Exclusive", True) == (of["type"], of["isDurable"])
        assert ["c"] == [one["consumerName"] for one in of["consumers"]]
        assert of["consumers"][0]["clientVersion"].startswith("Pulsar-CPP")
        assert 0 <= of["msgBacklog"] <= 10
        internal = admin.get(f"{PERSISTENT}/t/internalStats")
        ledger = admin.topic("t").ledger
        assert f"{ledger}:9" == internal["lastConfirmedEntry"]
        assert ["s"] == [*internal["cursors"]]
        assert internal["cursors"]["s"]["markDeletePosition"].startswith(f"{ledger}:")


def test_figures_without_clients(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/t/subscription/s")
    stats = admin.get(f"{PERSISTENT}/t/stats")
    assert ("None", 0, []) == tuple(stats["subscriptions"]["s"][key] for key in ("type", "msgBacklog", "consumers"))
    assert 0 == admin.get(f"{PERSISTENT}/t/backlogSize")


def test_ranges_out_of_order_are_shown(admin: Admin) -> None:
    with client(admin.service_url) as pulsar:
        import pulsar as names

        consumer = pulsar.subscribe("t", "s", names.ConsumerType.Shared)
        producer = pulsar.create_producer("t")
        for number in range(5):
            producer.send(b"%d" % number)
        messages = [consumer.receive(30_000) for _ in range(5)]
        consumer.acknowledge(messages[2])
        consumer.close()
    cursor = admin.get(f"{PERSISTENT}/t/internalStats")["cursors"]["s"]
    ledger = admin.topic("t").ledger
    assert f"[({ledger}:1..{ledger}:2]]" == cursor["individuallyDeletedMessages"]
    assert f"{ledger}:-1" == cursor["markDeletePosition"]
    assert 4 == admin.get(f"{PERSISTENT}/t/stats")["subscriptions"]["s"]["msgBacklog"]
    whole = admin.topic("t").log.size_bytes()
    for entry, size in ((0, whole), (4, whole // 5), (5, 0)):
        asked = admin.ask("PUT", f"{PERSISTENT}/t/backlogSize", {"ledgerId": ledger, "entryId": entry})
        assert (200, size) == asked


def test_the_figures_of_partitions_are_added_up(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/p/partitions", 2)
    admin.do("PUT", f"{PERSISTENT}/p/subscription/s")
    with client(admin.service_url) as pulsar:
        producer = pulsar.create_producer("p")
        for number in range(6):
            producer.send(b"%d" % number, partition_key=str(number))
        total = admin.get(f"{PERSISTENT}/p/partitioned-stats")
        assert 6 == total["msgInCounter"] == total["subscriptions"]["s"]["msgBacklog"]
        assert 2 == total["metadata"]["partitions"] == len(total["partitions"]) == len(total["publishers"])
        assert {} == admin.get(f"{PERSISTENT}/p/partitioned-stats?perPartition=false")["partitions"]
        assert 2 == len(admin.get(f"{PERSISTENT}/p/partitioned-internalStats")["partitions"])
        assert 405 == admin.ask("GET", f"{PERSISTENT}/p/stats")[0]
        assert 200 == admin.ask("GET", f"{PERSISTENT}/p-partition-1/stats")[0]


def test_what_is_stored_about_a_topic_is_shown(admin: Admin) -> None:
    admin.do("PUT", f"{PERSISTENT}/t/subscription/s")
    with client(admin.service_url) as pulsar:
        pulsar.create_producer("t").send(b"x")
    ledger = admin.topic("t").ledger
    found = admin.get(f"{PERSISTENT}/t/internal-info")
    assert [(ledger, 1)] == [(one["ledgerId"], one["entries"]) for one in found["ledgers"]]
    assert {"ledgerId": ledger, "entryId": -1} == found["cursors"]["s"]["markDelete"]
    assert [] == found["cursors"]["s"]["individualDeletedMessages"]
    admin.do("PUT", f"{PERSISTENT}/parts/partitions", 2)
    names = [f"persistent://public/default/parts-partition-{number}" for number in range(2)]
    assert names == [*admin.get(f"{PERSISTENT}/parts/internal-info")["partitions"]]
    assert 404 == admin.ask("GET", f"{PERSISTENT}/none/internal-info")[0]


def test_a_blocked_subscription_and_delayed_messages_are_shown(admin: Admin) -> None:
    with client(admin.service_url) as pulsar:
        import pulsar as names

        producer = pulsar.create_producer("t", batching_enabled=False)
        consumer = pulsar.subscribe("t", "s", names.ConsumerType.Shared)
        admin.do("POST", f"{PERSISTENT}/t/maxUnackedMessagesOnSubscription", 3)
        shown = ("blockedSubscriptionOnUnackedMsgs", "unackedMessages", "msgDelayed", "msgBacklogNoDelayed")

        def figures() -> tuple[object, ...]:
            of = admin.get(f"{PERSISTENT}/t/stats")["subscriptions"]["s"]
            return tuple(of[name] for name in shown)

        producer.send(b"later", deliver_after=timedelta(hours=1))
        producer.send(b"0")
        consumer.acknowledge(consumer.receive(30_000))
        wait_for(lambda: figures() == (False, 0, 1, 0))
        for _ in range(3):
            producer.send(b"now")
        received = [consumer.receive(30_000) for _ in range(3)]
        wait_for(lambda: figures() == (True, 3, 1, 3))
        for message in received:
            consumer.acknowledge(message)
        wait_for(lambda: figures() == (False, 0, 1, 0))
