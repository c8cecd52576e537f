"""The commands of docs/RECOVERY.md about backups, repair and health do what it says, in its order."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.compat.clients.librdkafka import settings
from tests.docs.blocks import blocks
from tests.process.broker_process import PATIENCE_S, BrokerProcess
from tests.process.test_backup import read
from tests.storage.repair.test_repair import flip

GUIDE = Path(__file__).parents[2] / "docs" / "RECOVERY.md"


def commands(word: str) -> list[list[str]]:
    """The lines of the guide's blocks that begin with ``broker WORD``, without their comments."""
    lines = [line for block in blocks(GUIDE) for line in block.text.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith(f"broker {word} ")]
    assert found, f"the guide has no `broker {word}`"
    return found


def run(line: list[str], places: dict[str, str], address: str) -> subprocess.CompletedProcess[bytes]:
    arguments = []
    for word in line[1:]:
        for name in sorted(places, key=len, reverse=True):
            word = word.replace(name, places[name])
        arguments.append(word)
    environment = {**os.environ, "BROKER_BOOTSTRAP_SERVERS": address}
    command = [sys.executable, "-m", "broker", *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S, env=environment)


def test_the_guide_s_commands_do_what_it_says(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        producer = Producer(settings(broker.address, linger_ms=0))
        for number in range(20):
            producer.produce("orders", b"%d" % number)
            assert 0 == producer.flush(PATIENCE_S)
        restored = BrokerProcess(tmp_path / "restored")
        restored.directory.mkdir()
        places = {
            "/backup": str(tmp_path),
            "/var/lib/broker-restored": str(restored.data_dir),
            "/var/lib/broker": str(broker.data_dir),
            "localhost:9092": broker.address,
        }
        deep = next(line for line in commands("health") if "--deep" in line)
        deep += ["--least-free", "0"]
        assert 0 == run(deep, places, broker.address).returncode
        for line in [*commands("backup"), *commands("restore")]:
            ended = run(line, places, broker.address)
            assert 0 == ended.returncode, (line, ended.stderr.decode())
        with restored:
            assert list(range(20)) == read(restored.address, "orders", 0)
        assert 0 == broker.stop()
        dry, applied = (line for line in commands("inspect") if "--repair" in line)
        assert 0 == run(dry, places, "").returncode
        flip(broker.data_dir / "orders-0" / f"{0:020d}.log", 500)
        before = (broker.data_dir / "orders-0" / f"{0:020d}.log").read_bytes()
        assert 1 == run(dry, places, "").returncode
        assert before == (broker.data_dir / "orders-0" / f"{0:020d}.log").read_bytes()
        assert 0 == run(applied, places, "").returncode
        broker.start()
        assert 19 == len(read(broker.address, "orders", 0))
        assert 0 == run(deep, places, broker.address).returncode


def test_the_systemd_unit_is_one_that_systemd_reads(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("there is no systemd-analyze (apt install systemd)")
    unit = (GUIDE.parents[1] / "packaging" / "systemd" / "broker.service").read_text()
    assert unit.count("/opt/broker/bin/broker") == 1
    copy = tmp_path / "broker.service"
    copy.write_text(unit.replace("/opt/broker/bin/broker", sys.executable))  # a program that is there
    checked = subprocess.run([tool, "verify", "--man=no", str(copy)], check=False, capture_output=True, timeout=60)
    said = [line for line in checked.stderr.decode().splitlines() if "broker.service" in line]
    assert (0, []) == (checked.returncode, said)
