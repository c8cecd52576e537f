"""A partition that is offline, step by step as docs/RECOVERY.md describes it: seen, diagnosed, mended, served again."""

from pathlib import Path

from confluent_kafka import Producer

from tests.compat.clients.librdkafka import settings
from tests.process.broker_process import PATIENCE_S, BrokerProcess
from tests.process.test_backup import command, read


def fill(servers: str) -> None:
    producer = Producer(settings(servers, linger_ms=0))
    for number in range(20):
        for topic in ("damaged", "sound"):
            producer.produce(topic, b"%d" % number)
        assert 0 == producer.flush(PATIENCE_S)


def test_damaged_partition_is_diagnosed_mended_and_served(tmp_path: Path) -> None:
    # Scrubbed at once, so that the damage is found while the broker runs.
    with BrokerProcess(tmp_path, "scrub_bytes_per_second=100000000", more_listeners=["http://127.0.0.1:0"]) as broker:
        fill(broker.address)
        data = broker.data_dir
        assert 2 == command_status("inspect", "--repair", data), "a broker uses it"
        assert "serves" in command("health", "--deep", broker.address)
        assert 0 == broker.stop()
        log = data / "damaged-0" / f"{0:020d}.log"
        content = bytearray(log.read_bytes())
        content[len(content) // 2] ^= 1
        log.write_bytes(content)
        (data / ".kafka_cleanshutdown").unlink()
        (data / "recovery-point-offset-checkpoint").unlink()
        broker.start()
        # Seen.
        assert "damaged-0 is offline" in command("health", "--deep", broker.address, fails=1)
        assert list(range(20)) == read(broker.address, "sound", 0)
        broker.stop()
        # Diagnosed: nothing is changed.
        before = log.read_bytes()
        said = command("inspect", "--repair", data, fails=1)
        assert "damaged-0: 00000000000000000000.log has" in said
        assert "Nothing was changed" in said
        assert before == log.read_bytes()
        # Mended.
        assert "1 of 2 partitions were mended" in command("inspect", "--repair", "--apply", data)
        assert "nothing is damaged" in command("inspect", "--repair", data)
        # Served again.
        broker.start()
        left = read(broker.address, "damaged", 0)
        assert 19 == len(left)
        assert set(left) < set(range(20))
        assert "serves" in command("health", "--deep", broker.address)


def command_status(*arguments: object) -> int:
    command(*arguments, fails=2)
    return 2


def test_only_data_directory_and_partitions_are_taken(tmp_path: Path) -> None:
    assert "Name a data directory" in command("inspect", "--repair", tmp_path, fails=2)
    with BrokerProcess(tmp_path) as broker:
        fill(broker.address)
        broker.stop()
        assert "There is no partition" in command("inspect", "--repair", "--partition", "x-0", broker.data_dir, fails=2)
        assert "1 partitions were read" in command("inspect", "--repair", "--partition", "sound-0", broker.data_dir)
        assert "--repair" in command("inspect", "--apply", broker.data_dir, fails=2)
