"""kill -9 while segments are uploaded, evicted, read back and deleted: nothing that was acknowledged is lost, and the store has
what the catalogue says, or nobody's remains of an upload.

``BROKER_KILL_CYCLES`` says how often (5); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails).
"""

import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime.directory_objects import DirectoryObjects
from broker.storage.tier import keys
from tests.process.broker_process import BrokerProcess
from tests.process.test_kill import CLIENT, CYCLES, PARTITIONS, SEED, Load, in_the_log

SETTINGS = (
    "log_segment_bytes=100000",
    "log_local_retention_bytes=200000",
    "log_segment_delete_delay_ms=0",
    "log_flush_offset_checkpoint_interval_ms=20",
    "log_retention_check_interval_ms=20",
    "remote_log_manager_task_interval_ms=10",
    "remote_object_delete_delay_ms=0",
    "remote_cache_bytes=1048576",
)
pytestmark = pytest.mark.timeout(120 + 10 * CYCLES)


def trim(broker: BrokerProcess, before: int) -> None:
    """Delete the first records, so that rows and objects go, too."""
    admin = AdminClient({"bootstrap.servers": broker.address, **CLIENT})
    for partition in range(PARTITIONS):
        admin.delete_records([TopicPartition("trimmed", partition, before)])[
            TopicPartition("trimmed", partition, before)
        ].result(60)


def starts(broker: BrokerProcess) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "check", **CLIENT})
    found = [consumer.get_watermark_offsets(TopicPartition("trimmed", number), 60)[0] for number in range(PARTITIONS)]
    consumer.close()
    return found


def local_bytes(broker: BrokerProcess) -> int:
    total = 0
    for path in broker.data_dir.glob("kept-*/*.log"):
        with suppress(FileNotFoundError):  # evicted meanwhile
            total += path.stat().st_size
    return total


def test_nothing_is_lost(tmp_path: Path) -> None:
    print(f"BROKER_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    with BrokerProcess(tmp_path, *SETTINGS, f"objects=file://{tmp_path}/objects") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, **CLIENT})
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("kept", "trimmed")]).values():
            made.result(30)
        loads = [
            Load(broker.address, name, 1000, 500, **{"enable.idempotence": True, "batch.num.messages": 20})
            for name in ("kept", "trimmed")
        ]
        for load in loads:
            load.start()
        try:
            trimmed = 0
            for _ in range(CYCLES):
                before = [load.count for load in loads]
                while any(load.count < count + 600 for load, count in zip(loads, before, strict=True)):
                    time.sleep(0.01)
                trimmed = min(map(len, loads[1].acked.values())) // 2
                trim(broker, trimmed)
                time.sleep(chance.uniform(0.0, 0.4))
                broker.kill()
                broker.start()
        finally:
            for load in loads:
                load.stopping.set()
            for load in loads:
                load.join()
        kept = loads[0]
        assert [] == kept.failed
        expected = {partition: list(range(partition, kept.sent, PARTITIONS)) for partition in range(PARTITIONS)}
        assert expected == in_the_log(broker.address, "kept")
        assert [trimmed] * PARTITIONS == starts(broker)
        # Uploads are behind the load where fsync is slow.
        while local_bytes(broker) >= kept.sent * 1000 / 2:
            time.sleep(0.05)
        time.sleep(0.2)
        assert broker.stop() == 0
        catalogue = SqliteCatalogue(f"{broker.data_dir}/catalogue.sqlite")
        rows = list(catalogue.load_remote_files())
        used = {row.object for row in rows}
        condemned = {key for key, _ in catalogue.condemned_objects()}
        catalogue.close()
        stored = {key for key, _ in DirectoryObjects(f"{tmp_path}/objects").list(keys.PREFIX)}
        assert set() == used - stored
        assert CYCLES * 2 >= len(stored - used - condemned), "remains of more uploads than were interrupted"
