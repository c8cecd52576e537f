"""Compaction by admin calls, asked of a whole broker."""

from tests.network.harness import wait_for
from tests.pulsar.admin.harness import PERSISTENT, Admin


def test_a_topic_is_compacted_on_demand_and_says_how_it_went(admin: Admin) -> None:
    path = f"{PERSISTENT}/orders"
    assert 404 == admin.ask("PUT", f"{path}/compaction")[0]
    admin.do("PUT", path)
    assert {"status": "NOT_RUN", "lastError": ""} == admin.get(f"{path}/compaction")
    admin.do("PUT", f"{path}/compaction")
    wait_for(lambda: admin.get(f"{path}/compaction")["status"] == "SUCCESS")


def test_of_a_partitioned_topic_all_partitions_are_compacted(admin: Admin) -> None:
    path = f"{PERSISTENT}/parts"
    admin.do("PUT", f"{path}/partitions", 3)
    admin.do("PUT", f"{path}/compaction")
    wait_for(lambda: admin.get(f"{path}/compaction")["status"] == "SUCCESS")
    for number in range(3):
        assert "SUCCESS" == admin.get(f"{path}-partition-{number}/compaction")["status"]
