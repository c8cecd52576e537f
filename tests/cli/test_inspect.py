"""`broker inspect`: what is sound is shown, and no kind of damage goes unseen."""

import json
import struct
from pathlib import Path

import pytest

from broker.cli.inspect import check_segment
from broker.client import Broker
from protocol.kafka.records.batch import stamp
from protocol.kafka.records.entry import build_entry
from protocol.kafka.records.records import build_batch
from protocol.pulsar.pulsar_pb2 import MessageMetadata
from protocol.pulsar.sends import write_stored_part
from tests.cli.conftest import Run

BASE = 100


def write_segment(directory: Path) -> tuple[Path, list[int]]:
    """Ten batches of three records from offset 100 on, with indexes; the path, and where each batch begins."""
    partition = directory / "orders-0"
    partition.mkdir()
    data, positions, offset_index, time_index = bytearray(), [], b"", b""
    for number in range(10):
        offset, time = BASE + 3 * number, 1_700_000_000_000 + 1000 * number
        positions.append(len(data))
        records = [(b"key", b"value %d" % (offset + i), [("h", b"x")], time + i) for i in range(3)]
        if number % 3 == 2:
            offset_index += struct.pack(">ii", offset + 2 - BASE, len(data))
            time_index += struct.pack(">qi", time + 2, offset + 2 - BASE)
        data += build_batch(records, base_offset=offset, compression=number % 2, partition_leader_epoch=0)
    path = partition / f"{BASE:020}.log"
    path.write_bytes(data)
    path.with_suffix(".index").write_bytes(offset_index)
    path.with_suffix(".timeindex").write_bytes(time_index)
    return path, positions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_segment(tmp_path)[0]


def patch(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def problems(path: Path, with_records: bool = False) -> list[str]:
    return check_segment(str(path), with_records=with_records).problems


def test_a_summary_may_be_objects(path: Path, run_alone: Run) -> None:
    said = json.loads(run_alone("inspect", str(path), "--output", "json").stdout)
    assert ("orders-0", 100, 130, []) == tuple(map(said.get, ("partition", "base_offset", "next_offset", "problems")))
    assert b"leave it out" in run_alone("inspect", str(path), "--batches", "--output", "json", fails=2).stderr


def test_a_sound_segment_has_no_problems(path: Path) -> None:
    segment = check_segment(str(path), with_records=True)
    assert [] == segment.problems
    assert (100, 130, 10, 30) == (segment.base_offset, segment.next_offset, segment.batches, segment.records)
    assert (3, 3, 1_700_000_009_002) == (segment.index_entries, segment.time_index_entries, segment.max_timestamp)


def test_missing_indexes_are_no_problem(path: Path) -> None:
    path.with_suffix(".index").unlink()
    path.with_suffix(".timeindex").unlink()
    assert [] == problems(path)


def test_reserved_space_is_no_problem(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(10_000))
    path.with_suffix(".index").write_bytes(path.with_suffix(".index").read_bytes() + bytes(80))
    path.with_suffix(".timeindex").write_bytes(path.with_suffix(".timeindex").read_bytes() + bytes(120))
    assert [] == problems(path)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path, positions = write_segment(tmp_path)
    content = path.read_bytes()
    # Not covered by the checksum, because the broker writes them: the leader epoch, and the base offset, which may skip some
    # (compaction) but not go back.
    patched = {position + i for position in positions for i in (*range(8), *range(12, 16))}
    for position in sorted(set(range(0, len(content), 3)) - patched):
        patch(path, position, bytes([content[position] ^ 0x10]))
        assert problems(path), position
        path.write_bytes(content)


def test_offset_going_back_or_too_far_is_reported(tmp_path: Path) -> None:
    path, positions = write_segment(tmp_path)
    patch(path, positions[5], struct.pack(">q", 114))
    assert f"corrupt at {positions[5]}: offset 114 where 115 or more was expected" in problems(path)
    patch(path, positions[5], struct.pack(">q", 1 << 40))
    assert any("or less was expected" in problem for problem in problems(path))


@pytest.mark.parametrize("lost", [1, 20, 60, 61, 70])
def test_a_torn_tail_is_found(path: Path, lost: int) -> None:
    path.write_bytes(path.read_bytes()[:-lost])
    segment = check_segment(str(path))
    assert 9 == segment.batches
    assert 1 == len([problem for problem in segment.problems if problem.startswith("torn tail")])


def test_batches_behind_a_corrupt_one_are_still_read(tmp_path: Path) -> None:
    path, positions = write_segment(tmp_path)
    patch(path, positions[4] + 65, b"\xff\xff")
    segment = check_segment(str(path))
    assert (9, 1) == (segment.batches, len([problem for problem in segment.problems if "checksum" in problem]))


def test_a_batch_that_stands_twice_is_found(tmp_path: Path) -> None:
    path, positions = write_segment(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content + content[positions[9] :])
    assert ["offset 127 where 130 or more was expected" in problem for problem in problems(path)] == [True]


def test_records_contradicting_header_are_reported_with_records_option(tmp_path: Path) -> None:
    path, _ = write_segment(tmp_path)
    batch = build_batch([(b"k", b"v", [], 1), (b"k", b"v", [], 2)], base_offset=130, offsets=[130, 130])
    path.write_bytes(path.read_bytes() + batch)
    assert [] == problems(path)
    assert "record with offset 130 after 130" in problems(path, with_records=True)[0]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (struct.pack(">ii", 20, 1), "where no batch begins"),
        (struct.pack(">ii", 1, 400), "do not ascend by offset"),
        (struct.pack(">ii", 20, 1 << 20), "past the last batch"),
        (b"\1\2\3", "not a whole number of entries"),
    ],
)
def test_an_offset_index_that_misleads_is_found(path: Path, entry: bytes, words: str) -> None:
    index = path.with_suffix(".index")
    index.write_bytes(index.read_bytes() + entry)
    assert any(words in problem for problem in problems(path)), problems(path)


def test_index_entry_past_its_offset_is_reported(tmp_path: Path) -> None:
    path, positions = write_segment(tmp_path)
    path.with_suffix(".index").write_bytes(struct.pack(">ii", 8, positions[5]))
    assert ["offset index: offset 108 points past itself, at the batch of 115"] == problems(path)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (struct.pack(">qi", 1_700_000_000_000, 29), "do not ascend by timestamp"),
        (struct.pack(">qi", 1_700_000_008_999, 29), "nothing is said to be newer than 1700000008999"),
        (struct.pack(">qi", 1_800_000_000_000, 300), "past the last batch"),
    ],
)
def test_a_time_index_that_misleads_is_found(path: Path, entry: bytes, words: str) -> None:
    index = path.with_suffix(".timeindex")
    index.write_bytes(index.read_bytes() + entry)
    assert any(words in problem for problem in problems(path)), problems(path)


def test_a_batch_longer_than_the_window_is_read(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.log"
    small, large = ([(None, bytes(size), [], 1)] for size in (10, 6 * 1024 * 1024))
    path.write_bytes(build_batch(small) + build_batch(large, base_offset=1) + build_batch(small, base_offset=2))
    segment = check_segment(str(path))
    assert ([], 3) == (segment.problems, segment.batches)


def test_the_command_shows_segments_batches_and_records(run_alone: Run, tmp_path: Path) -> None:
    path, _ = write_segment(tmp_path)
    summary = run_alone("inspect", str(tmp_path)).stdout.decode().split("\t")
    assert ("orders-0", "100", "130", "10", "30") == tuple(summary[:5])
    assert "ok\n" == summary[-1]
    batches = run_alone("inspect", str(path), "--batches").stdout.decode().splitlines()
    assert 11 == len(batches)
    assert "offsets 103-105" in batches[2]
    assert "codec gzip" in batches[2]
    records = run_alone("inspect", str(path.parent), "--records").stdout.decode()
    assert '{"offset": 129, "time": "2023-11-14T22:13:29.002Z", "key": "key", "value": "value 129"' in records


def test_entries_are_shown_with_messages_as_records(run_alone: Run, tmp_path: Path) -> None:
    partition = tmp_path / "orders-0"
    partition.mkdir()
    body = b"".join(
        len(metadata).to_bytes(4, "big") + metadata + value
        for metadata, value in [(b"\x18\x01", b"a"), (b"\x18\x02", b"bc")]
    )
    stored = write_stored_part(
        MessageMetadata(
            producer_name="p\n", sequence_id=7, publish_time=1_700_000_000_000, num_messages_in_batch=2
        ).SerializeToString(),
        body,
    )
    secret = MessageMetadata(
        producer_name="q", sequence_id=8, publish_time=0, encryption_keys=[{"key": "k", "value": b"v"}]
    )
    data = build_entry(stored, 2, 1_700_000_000_000)
    data += build_entry(write_stored_part(secret.SerializeToString(), b"?"), 1, 1_700_000_000_000)
    stamp(data, len(data) - len(build_entry(write_stored_part(secret.SerializeToString(), b"?"), 1, 0)), 2, 0)
    (partition / f"{0:020}.log").write_bytes(data)
    shown = run_alone("inspect", str(tmp_path), "--records").stdout.decode()
    assert "offsets 0-1, " in shown
    assert "entry of 2 messages from 'p\\n' sequence 7\n" in shown
    assert "entry of 1 messages from 'q' sequence 8, encrypted or a chunk\n" in shown
    values = [json.loads(line) for line in shown.splitlines() if line.startswith("    {")]
    assert [(0, "a"), (1, "bc"), (2, "?")] == [(value["offset"], value["value"]) for value in values]
    summary = run_alone("inspect", str(tmp_path)).stdout.decode().splitlines()[-1].split()
    assert ["orders-0", "0", "3", "2", "3"] == summary[:5]


def test_the_command_fails_when_anything_is_wrong(run_alone: Run, tmp_path: Path) -> None:
    path, positions = write_segment(tmp_path)
    patch(path, positions[1] + 65, b"\xff\xff")
    told = run_alone("inspect", str(tmp_path), fails=1).stderr.decode().splitlines()
    assert f"{path}: corrupt at {positions[1]} (offset 103)" in told[0]
    assert "broker: Of 1 segments 1 cannot be trusted." == told[-1]


def test_command_reports_missing_segments(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("no segment")
    assert b"no segment files" in run_alone("inspect", str(tmp_path), fails=1).stderr
    assert b"not a segment file" in run_alone("inspect", str(tmp_path / "notes.log"), fails=1).stderr
    assert b"does not exist" in run_alone("inspect", str(tmp_path / "nowhere"), fails=2).stderr


def test_log_written_by_a_broker_is_sound(run: Run, topic: str, session_broker: Broker) -> None:
    text = b"".join(b"%d\n" % number for number in range(20_000))
    run("produce", topic, "--acks", "1", stdin=text)
    directory = Path(session_broker.data_dir) / f"{topic}-0"
    shown = run("inspect", str(directory), "--records").stdout
    assert 20_000 == shown.count(b'"value"')
