import pickle
import socket
import threading
from collections.abc import Collection

import pytest

from broker.client import Broker
from broker.client.kafka import EARLIEST, LATEST, MAX_TIMESTAMP, ClientConfig, Cluster, OffsetAndMetadata
from broker.client.kafka.errors import UnknownTopicError, UnreachableError
from broker.client.kafka.routing import Routing
from broker.client.kafka.values import TopicMetadata
from tests.client.kafka.conftest import config
from tests.client.kafka.logs import append


def test_topics_by_name_come_with_their_partitions(cluster: Cluster, topic: str) -> None:
    topics = cluster.topics([topic])
    assert {topic: (0, 1)} == {name: metadata.partitions for name, metadata in topics.items()}


def test_missing_topic_is_absent_and_not_created(cluster: Cluster, topic: str) -> None:
    assert {topic} == cluster.topics([topic, "nobody-made-this"]).keys()
    assert "nobody-made-this" not in cluster.topics(None)


def test_recreated_topic_has_another_id(
    running: Broker, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cluster.topics([topic])[topic].topic_id
    assert before is not None
    assert before == cluster.topics(None)[topic].topic_id
    monkeypatch.setattr("broker.client.kafka.routing._PARTITIONS_PER_PAGE", 1)  # many pages
    assert before == cluster.topics(None)[topic].topic_id
    assert all(metadata.topic_id is not None for metadata in cluster.topics(None).values())
    running.server.kafka.logs.delete_topic(topic)
    running.server.kafka.logs.create_topic(topic, 2, {})
    assert cluster.topics([topic])[topic].topic_id not in (None, before)


def test_all_topics_can_be_asked_for(cluster: Cluster, topic: str) -> None:
    assert topic in cluster.topics(None)


def test_no_names_give_no_topics(cluster: Cluster, topic: str) -> None:
    assert {} == cluster.topics([])


def test_topics_of_a_producer_are_created(cluster: Cluster) -> None:
    assert (0, 1) == cluster.make_topics(["made-for-a-producer"])["made-for-a-producer"].partitions


def test_topic_that_broker_does_not_create_is_error() -> None:
    refused = pytest.raises(UnknownTopicError, match="The topic 'missing' does not exist")
    with Broker(auto_create_topics_enable=False) as running:
        hasty = config(running, retry_backoff_ms=1, retry_backoff_max_ms=300)  # gives up after 3 s
        with Cluster(hasty) as cluster, refused:
            cluster.make_topics(["missing"])


def test_slow_creation_of_a_topic_is_awaited() -> None:
    """Kafka's controller creates the topic, and meanwhile its brokers answer that it does not exist."""

    class Looking(Routing):
        looks = 0

        def refresh(self, names: Collection[str] | None, create: bool = False) -> dict[str, TopicMetadata]:
            self.looks += 1
            if self.looks == 9:
                running.server.kafka.logs.create_topic("slow", 3, {})
            return super().refresh(names, create)

    with Broker(auto_create_topics_enable=False) as running:
        with Cluster(config(running, retry_backoff_ms=1)) as cluster:
            cluster.routing = looking = Looking(cluster.config, cluster.clock)
            assert (0, 1, 2) == cluster.make_topics(["slow"])["slow"].partitions
        assert 9 == looking.looks


def test_offsets_of_a_partition(running: Broker, cluster: Cluster, topic: str) -> None:
    append(running, topic, [b"a"], timestamp=1000)
    append(running, topic, [b"b", b"c"], timestamp=3000)
    append(running, topic, [b"d"], timestamp=2000)
    wanted = {EARLIEST: 0, LATEST: 4, MAX_TIMESTAMP: 1, 1000: 0, 1001: 1, 3000: 1, 3001: None}
    offsets = {time: cluster.offsets({(topic, 0): time})[topic, 0] for time in wanted}
    assert wanted == offsets


def test_offsets_of_many_partitions_come_at_once(cluster: Cluster, topic: str) -> None:
    assert {(topic, 0): 0, (topic, 1): 0} == cluster.offsets({(topic, 0): LATEST, (topic, 1): EARLIEST})
    assert {} == cluster.offsets({})


def test_offsets_of_missing_topic_are_an_error(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError, match="no topic 'nowhere'"):
        cluster.offsets({("nowhere", 0): LATEST})


def test_offsets_of_missing_partition_are_an_error(cluster: Cluster, topic: str) -> None:
    with pytest.raises(UnknownTopicError, match="has 2 partitions, and no partition 7"):
        cluster.offsets({(topic, 7): LATEST})


def test_committed_offsets_are_read_back(cluster: Cluster, topic: str) -> None:
    cluster.commit("group", {(topic, 0): OffsetAndMetadata(5, "five"), (topic, 1): 6})
    assert {(topic, 0): OffsetAndMetadata(5, "five")} == cluster.committed("group", [(topic, 0)])
    everything = {(topic, 0): OffsetAndMetadata(5, "five"), (topic, 1): OffsetAndMetadata(6)}
    assert everything == cluster.committed("group") == cluster.committed("group", stable=True)


def test_missing_commit_is_absent(cluster: Cluster, topic: str) -> None:
    assert {} == cluster.committed("a new group", [(topic, 0)]) == cluster.committed("a new group")
    assert {} == cluster.committed("a new group", [])


def test_closed_cluster_connects_again(cluster: Cluster, topic: str) -> None:
    cluster.topics([topic])
    cluster.close()
    assert topic in cluster.topics([topic])


def test_missing_broker_is_one_clear_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "socket.connection.setup.timeout.ms": 100}
        with pytest.raises(UnreachableError) as failure:
            Cluster(ClientConfig.from_properties(settings)).topics()
    assert f"No broker answers at 127.0.0.1:{port}: connection refused." == str(failure.value)


def test_patient_cluster_waits_for_a_starting_broker() -> None:
    with Broker() as broker:
        address = broker.bootstrap_servers
        broker.stop()  # the port is kept for it
        settings = {"bootstrap.servers": address, "socket.connection.setup.timeout.ms": 200, "retry.backoff.max.ms": 50}
        starting = threading.Timer(1, broker.start)
        starting.start()
        with Cluster(ClientConfig.from_properties(settings), patient=True) as patient:
            assert {} == patient.topics()
        starting.join()


def test_second_address_is_tried(running: Broker, topic: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        both = f"127.0.0.1:{taken.getsockname()[1]},{running.bootstrap_servers}"
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": both})) as cluster:
            assert topic in cluster.topics([topic])


def test_cluster_is_not_pickled_but_its_config_is(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="send its config"):
        pickle.dumps(cluster)
    assert cluster.config == pickle.loads(pickle.dumps(cluster.config))
