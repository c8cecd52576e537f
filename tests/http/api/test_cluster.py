"""``/api/v1/cluster`` of one node; tests/process/test_nodes_http.py has several."""

import uuid
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.nodes import owner_of
from broker.http.api.cluster import counted
from broker.storage.config import TopicInfo
from tests.http.api.harness import api_broker


def test_a_broker_alone_has_all_partitions() -> None:
    with api_broker(broker_rack="r1") as api:
        api.kafka.logs.create_topic("orders", 3)
        api.kafka.logs.create_topic("bills", 2)
        address = api.broker.address
        assert {
            "cluster_id": api.kafka.cluster_id,
            "node_id": 1,
            "nodes": [
                {
                    "node_id": 1,
                    "alive": True,
                    "rack": "r1",
                    "machine": None,
                    "epoch": 0,
                    "endpoints": {"http": address("http"), "kafka": address("kafka")},
                    "partitions": 5,
                }
            ],
        } == api.get("/cluster")
        metrics = api.raw("/metrics")[1].decode()
        assert 'broker_cluster_nodes{state="alive"} 1' in metrics
        assert 'broker_cluster_nodes{state="away"} 0' in metrics
        assert "broker_cluster_settle_seconds_count" not in metrics
        assert "broker_catalogue_seconds_count" not in metrics


@given(st.text(max_size=20), st.integers(1, 50), st.integers(1, 9))
def test_partitions_are_counted_where_they_are(topic: str, partitions: int, nodes: int) -> None:
    info = TopicInfo(topic, uuid.UUID(int=1), partitions, {})
    assert Counter(owner_of(topic, number, nodes) for number in range(partitions)) == counted(info, nodes)
