"""`broker shuffle`, as processes against a real broker."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Broker, ShuffleWriter
from broker.client.shuffle.blocks import new_data_set
from protocol.shuffle.ids import ResultPartitionID
from tests.cli.conftest import Run, command_line


@pytest.fixture
def address(session_broker: Broker) -> str:
    return session_broker.shuffle_address


@pytest.fixture
def partition() -> ResultPartitionID:
    return ResultPartitionID.of(os.urandom(16), 3, subtask=1)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """One of many buffers, one of less than one, an empty one."""
    paths = []
    for index, size in enumerate((200_000, 10, 0)):
        path = tmp_path / f"in-{index}"
        path.write_bytes(os.urandom(size))
        paths.append(path)
    return paths


def test_blocking_partition_is_read_back_as_files(
    run_alone: Run, address: str, partition: ResultPartitionID, files: list[Path], tmp_path: Path
) -> None:
    names = [str(path) for path in files]
    run_alone("shuffle", "write", address, partition.hex(), "--type", "blocking", "--buffer-size", "4096", *names)
    for number, which in enumerate(("0-2", "2,0")):
        out = tmp_path / f"out-{number}"
        run_alone("shuffle", "read", address, partition.hex(), which, "--out", str(out), "--credit", str(number))
        expected = {"0", "1", "2"} if number == 0 else {"0", "2"}
        assert expected == {path.name for path in out.iterdir()}
        assert all(path.read_bytes() == files[int(path.name)].read_bytes() for path in out.iterdir())


def test_a_pipelined_partition_goes_from_process_to_process(
    run_alone: Run, address: str, partition: ResultPartitionID, files: list[Path], tmp_path: Path
) -> None:
    reader = subprocess.Popen(
        command_line("shuffle", "read", address, partition.hex(), "0-2", "--out", str(tmp_path / "out")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    run_alone("shuffle", "write", address, str(partition), *map(str, files))
    output, said = reader.communicate(timeout=60)
    assert (0, b"") == (reader.returncode, said)
    rows = [line.split(b"\t")[:3] for line in output.splitlines()]
    assert [[b"0", b"7", b"200000"], [b"1", b"1", b"10"], [b"2", b"0", b"0"]] == rows
    assert files[0].read_bytes() == (tmp_path / "out" / "0").read_bytes()


def test_standard_input_may_be_written(
    run_alone: Run, address: str, partition: ResultPartitionID, tmp_path: Path
) -> None:
    run_alone("shuffle", "write", address, partition.hex(), "--type", "blocking", "-", stdin=b"from a pipe")
    run_alone("shuffle", "read", address, partition.hex(), "0", "--out", str(tmp_path))
    assert b"from a pipe" == (tmp_path / "0").read_bytes()


def test_failed_producer_has_its_own_exit_status(
    run_alone: Run, address: str, partition: ResultPartitionID, tmp_path: Path
) -> None:
    writer = ShuffleWriter(address, partition, 1)
    writer.open()
    writer.push(0, b"what there was")
    writer.fail("out of luck")
    writer.close()
    result = run_alone("shuffle", "read", address, partition.hex(), "0", "--out", str(tmp_path), fails=3)
    assert b"out of luck" in result.stderr


def test_partitions_are_listed_and_released(
    run_alone: Run, address: str, partition: ResultPartitionID, files: list[Path], tmp_path: Path
) -> None:
    run_alone("shuffle", "write", address, partition.hex(), "--type", "blocking", str(files[1]))
    listed = run_alone("shuffle", "list", address, "--prefix", partition.hex()[:10]).stdout.decode()
    as_json = run_alone("shuffle", "list", address, "--prefix", partition.hex()[:10], "--output", "json").stdout
    assert partition.hex() == json.loads(as_json)["partition"]
    assert [partition.hex(), "blocking", "finished", "1"] == listed.split()[:4]
    run_alone("shuffle", "release", address, partition.hex())
    run_alone("shuffle", "release", address, partition.hex(), fails=1)
    run_alone("shuffle", "release", address, partition.hex(), "--if-exists")
    assert partition.hex() not in run_alone("shuffle", "list", address).stdout.decode()


def test_a_data_set_is_released_as_a_whole(run_alone: Run, address: str, files: list[Path]) -> None:
    data_set = new_data_set()
    for number in range(2):
        partition = ResultPartitionID.of(data_set, number).hex()
        run_alone("shuffle", "write", address, partition, "--type", "blocking", str(files[1]))
    run_alone("shuffle", "release", address, data_set.hex())
    assert data_set.hex() not in run_alone("shuffle", "list", address).stdout.decode()
    refused = run_alone("shuffle", "write", address, partition, "--type", "blocking", str(files[1]), fails=1)
    assert b"was released" in refused.stderr
    run_alone("shuffle", "release", address, data_set.hex(), fails=1)
    run_alone("shuffle", "release", address, data_set.hex(), "--if-exists")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("list", "nowhere"), 2, b"host:port"),
        (("list", "127.0.0.1:1"), 1, b"refused"),
        (("read", "h:1", "0" * 30, "0", "--out", "x"), 2, b"120 hex digits"),
        (("read", "h:1", "00" * 60, "3-1", "--out", "x"), 2, b"0-15 or 0,3"),
        (("read", "h:1", "00" * 60, "0-999999", "--out", "x"), 2, b"4096"),
        (("read", "h:1", "00" * 60, "0", "--out", "x", "--credit", "0", "--floating-buffers", "0"), 2, b"both 0"),
        (("release", "h:1", "z#z"), 2, b"120 hex digits"),
        (("write", "h:1", "00" * 60, "no-such-file"), 2, b"no-such-file"),
        (("write", "h:1", "00" * 60, "--generation", "3.0", "-"), 2, b"release of Flink"),
    ],
)
def test_refusals_are_one_sentence(run_alone: Run, arguments: tuple[str, ...], status: int, said: bytes) -> None:
    assert said in run_alone("shuffle", *arguments, fails=status).stderr


def test_a_partition_can_have_a_plain_name(run_alone: Run, address: str, files: list[Path], tmp_path: Path) -> None:
    name = f"shop/{os.urandom(4).hex()}"
    run_alone("shuffle", "write", address, name, "--type", "blocking", *map(str, files))
    run_alone("shuffle", "read", address, name, "0-2", "--out", str(tmp_path / "out"))
    assert files[0].read_bytes() == (tmp_path / "out" / "0").read_bytes()
    digits = run_alone("shuffle", "id", name).stdout.strip()
    assert digits in run_alone("shuffle", "list", address, "--prefix", digits.decode()).stdout
    run_alone("shuffle", "release", address, name)
    assert b"" == run_alone("shuffle", "list", address, "--prefix", digits.decode()).stdout


def test_address_may_be_option_and_output_json(run_alone: Run, address: str, files: list[Path], tmp_path: Path) -> None:
    name, place = f"shop/{os.urandom(4).hex()}", ("-b", address, "--output", "json")
    written = json.loads(run_alone("shuffle", "write", *place, name, "--type", "blocking", str(files[1])).stdout)
    assert (1, 1, 10) == (written["subpartitions"], written["buffers"], written["bytes"])
    read = json.loads(run_alone("shuffle", "read", name, "0", *place, "--out", str(tmp_path / "out")).stdout)
    assert (0, 10) == (read["subpartition"], read["bytes"])
    released = json.loads(run_alone("shuffle", "release", name, *place).stdout)
    assert {"partition": written["partition"], "done": "released"} == released
    assert b"Missing argument" in run_alone("shuffle", "list", fails=2).stderr


@pytest.mark.parametrize("scheme", ["kafka", "pulsar", "http"])
@pytest.mark.parametrize(
    "arguments",
    [["list"], ["release", "a"], ["read", "a", "0", "--out", "out"], ["write", "a", "-"]],
    ids=lambda a: a[0],
)
def test_another_protocols_port_is_named(
    run_alone: Run, all_listeners: Broker, scheme: str, arguments: list[str], tmp_path: Path
) -> None:
    action, *rest = (str(tmp_path / "out") if word == "out" else word for word in arguments)
    told = run_alone("shuffle", action, all_listeners.address(scheme), *rest, fails=1).stderr.decode()
    assert f"speaks {scheme.upper() if scheme == 'http' else scheme.capitalize()}" in told
    assert "shuffle://" in told
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def all_listeners() -> Iterator[Broker]:
    with Broker(listeners=[f"{scheme}://127.0.0.1:0" for scheme in ("kafka", "pulsar", "http", "shuffle")]) as broker:
        yield broker
