"""The fixtures that come with the package, in a pytest session of a user's own."""

import subprocess
import sys
from pathlib import Path

USERS_TESTS = """
import sys

from kafka import KafkaConsumer, KafkaProducer

EARLIEST = dict(auto_offset_reset="earliest", consumer_timeout_ms=10000)
addresses = []


def test_nothing_of_the_broker_is_loaded_before_it_is_used():
    assert "broker.server" not in sys.modules


def test_orders_arrive(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    producer.send("orders", b"one").get(10)
    producer.close()
    consumer = KafkaConsumer("orders", bootstrap_servers=broker.bootstrap_servers, **EARLIEST)
    assert b"one" == next(consumer).value
    consumer.close()


def test_every_test_has_a_broker_of_its_own(broker):
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    assert set() == consumer.topics()
    consumer.close()


def test_a_session_has_one(session_broker):
    addresses.append(session_broker.bootstrap_servers)


def test_a_session_has_the_same_one(session_broker):
    assert [session_broker.bootstrap_servers] == addresses
"""


def test_a_users_test_names_the_fixture_and_has_a_broker(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(USERS_TESTS)
    # With nothing of this project's settings: the plugin is found because the package is installed.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
        "test_orders.py",
    ]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=120)
    assert 0 == result.returncode, result.stdout.decode()
    assert b"5 passed" in result.stdout
