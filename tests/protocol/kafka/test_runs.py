"""``follow`` and ``usual`` exist twice. Here both get the same bytes: good ones, and good ones of which some were changed.

What they make of good requests is tested where they are used: in ``messages/test_produce_runs.py`` and in the tests of the log.
"""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.log.append import usual_python
from protocol.frames import crc32c
from protocol.kafka.messages.produce import Templates, follow_python
from protocol.kafka.records.batch import CRC_START, HEADER_SIZE, LOG_OVERHEAD, TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from protocol.kafka.runs import accelerated
from tests.protocol.kafka.messages.test_produce_runs import learned, request
from tests.test_floors import ROOT

NOW, FAR = 1_700_000_000_000, 1 << 62
MOST_BYTES = 1 << 20
Changes = list[tuple[int, int]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module in C, compiled from this tree."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("takes a C compiler")
    spec = importlib.util.spec_from_file_location("accelerator", ROOT / "packaging" / "accelerator.py")
    assert spec is not None
    assert spec.loader is not None
    accelerator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(accelerator)
    try:
        path = accelerator.compile_to(tmp_path_factory.mktemp("compiled"))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"_runs.c does not compile here: {error}")
    return loaded(path)


def loaded(path: Path) -> Any:
    loader = ExtensionFileLoader("protocol.kafka._runs", str(path))
    spec = importlib.util.spec_from_file_location("protocol.kafka._runs", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def changed(data: bytes, changes: Changes) -> bytearray:
    """With other values of the bytes at these places."""
    out = bytearray(data)
    for place, value in changes:
        if out:
            out[place % len(out)] = value
    return out


# Bytes with a special meaning are as likely as all others.
SPECIAL = (0, 1, 2, 7, 0x7F, 0x80, 0xFF)
BYTES = st.sampled_from(SPECIAL) | st.integers(0, 255)
CHANGES = st.lists(st.tuples(st.integers(0, 80) | st.integers(0, 50_000), BYTES), max_size=3)


# -- following --------------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 60, 126, 127, 128, 129, 16382, 16383, 16384])
REQUESTS = st.tuples(st.sampled_from(["a", "b", "long"]), st.integers(0, 1), st.sampled_from([1, -1]), SIZES)


def frame_of(version: int, one: tuple[str, int, int, int], correlation_id: int) -> bytes:
    topic, partition, acks, size = one
    return request(version, b"r" * size, topic, correlation_id, acks=acks, partition=partition)


def templates_of(version: int, wanted: Sequence[tuple[str, int, int, int]]) -> Templates:
    return learned(*{one[:3]: frame_of(version, one, 7) for one in wanted}.values())


def followed(
    follow: Callable[..., Any], templates: Templates, data: bytes | bytearray, most: int, most_bytes: int
) -> Any:
    tables = templates._by_middle, templates._layouts, templates._tells_layout, templates._is_flexible
    found = follow(*tables, memoryview(data), most, most_bytes)
    if found is None:
        return None
    its_templates, correlation_ids, records, end, is_uniform = found
    return list(map(id, its_templates)), correlation_ids, list(map(bytes, records)), end, is_uniform


@given(
    st.sampled_from([7, 8, 9, 12, 13]),
    st.lists(REQUESTS, min_size=1, max_size=5),
    CHANGES,
    st.integers(0, 6),
    st.integers(0, 60_000),
    st.integers(0, 400),
)
def test_both_follow_the_same_requests(
    compiled: Any,
    version: int,
    wanted: list[tuple[str, int, int, int]],
    changes: Changes,
    most: int,
    most_bytes: int,
    cut: int,
) -> None:
    templates = templates_of(version, wanted)
    whole = b"".join(frame_of(version, one, number) for number, one in enumerate(wanted))
    data = changed(whole, changes)[: len(whole) - cut]
    follow, _ = accelerated(compiled)

    expected = followed(follow_python, templates, data, most, most_bytes)

    assert expected == followed(follow, templates, data, most, most_bytes)


@given(st.sampled_from([7, 9, 13]), st.binary(max_size=100), st.integers(0, 100))
def test_both_follow_nothing_in_bytes_that_only_begin_well(
    compiled: Any, version: int, noise: bytes, kept: int
) -> None:
    one = ("a", 0, 1, 60)
    templates = templates_of(version, [one])
    data = frame_of(version, one, 1)[:kept] + noise

    expected = followed(follow_python, templates, data, 10, MOST_BYTES)

    assert expected == followed(accelerated(compiled)[0], templates, data, 10, MOST_BYTES)


@pytest.mark.parametrize("version", [7, 9, 13])
@pytest.mark.parametrize("size", [60, 200, 16384])
def test_both_follow_the_same_after_any_byte_has_changed(compiled: Any, version: int, size: int) -> None:
    one = ("a", 0, 1, size)
    templates, frame = templates_of(version, [one]), frame_of(version, one, 1)
    follow, _ = accelerated(compiled)
    places = [*range(80), *range(len(frame) - 4, len(frame))]
    frames = [changed(frame + frame, [(place, value)]) for place in places for value in SPECIAL]

    for data in frames:
        for most_bytes in (len(frame) - 1, len(frame), MOST_BYTES):
            expected = followed(follow_python, templates, data, 2, most_bytes)
            assert expected == followed(follow, templates, data, 2, most_bytes)


@pytest.mark.parametrize("version", [7, 9, 13])
def test_all_requests_are_followed(compiled: Any, version: int) -> None:
    wanted = [("a", 0, 1, 60), ("a", 1, 1, 200), ("long", 0, 1, 16384)]
    data = b"".join(frame_of(version, one, number) for number, one in enumerate(wanted))

    _, correlation_ids, records, end, is_uniform = followed(
        accelerated(compiled)[0], templates_of(version, wanted), data, 10, MOST_BYTES
    )

    assert ([0, 1, 2], [60, 200, 16384], len(data), False) == (
        correlation_ids,
        list(map(len, records)),
        end,
        is_uniform,
    )


# -- checking ---------------------------------------------------------------------------------------------------------

RECORDS = st.lists(st.sampled_from([0, 1, 50, 70, 8200]), min_size=1, max_size=7)
PRODUCERS = st.sampled_from([(-1, -1, -1), (5, 0, 0), (5, -1, 0), (5, 0, -1), (1 << 40, 3, 1 << 30)])


def batch_of(
    sizes: list[int], codec: int, producer: tuple[int, int, int], attributes: int, changes: Changes, *, mended: bool
) -> memoryview:
    """``mended``: the checksum is of the bytes as they are after the changes."""
    producer_id, epoch, sequence = producer
    records = [(None, b"v" * size, (), NOW + number % 2) for number, size in enumerate(sizes)]
    batch = changed(
        build_batch(
            records,
            compression=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=attributes,
        ),
        changes,
    )
    if mended and len(batch) > CRC_START:
        batch[17:CRC_START] = crc32c(bytes(batch[CRC_START:])).to_bytes(4, "big")
    return memoryview(batch)


BATCHES = st.builds(
    batch_of,
    RECORDS,
    st.integers(0, 4),
    PRODUCERS,
    st.sampled_from([0, 0, TRANSACTIONAL, 0x08, 0x20, 0x80]),
    CHANGES,
    mended=st.booleans(),
)


@given(
    st.lists(BATCHES, min_size=1, max_size=4),
    st.integers(0, 5),
    st.sampled_from([NOW - 1, NOW, NOW + 1, -FAR, -4 * FAR]),
    st.sampled_from([NOW - 1, NOW, NOW + 1, FAR, 4 * FAR]),
    st.sampled_from([200, 20_000, MOST_BYTES]),
)
def test_both_take_the_same_batches(
    compiled: Any, batches: list[memoryview], cut: int, earliest: int, latest: int, max_batch: int
) -> None:
    run = [*batches[:-1], batches[-1][: len(batches[-1]) - cut]]
    _, usual = accelerated(compiled)

    expected = usual_python(run, earliest, latest, max_batch)

    assert expected == usual(run, earliest, latest, max_batch)


@pytest.mark.parametrize("mended", [False, True])
def test_both_take_the_same_after_any_byte_of_a_header_has_changed(compiled: Any, mended: bool) -> None:
    _, usual = accelerated(compiled)
    changes = [[(place, value)] for place in range(HEADER_SIZE + 2) for value in SPECIAL]
    batches = [batch_of([50, 50], 0, (5, 0, 0), 0, change, mended=mended) for change in changes]

    for batch in batches:
        assert usual_python([batch], 0, FAR, MOST_BYTES) == usual([batch], 0, FAR, MOST_BYTES)


@pytest.mark.parametrize("earliest", [NOW - 1, NOW, NOW + 1, -4 * FAR])
@pytest.mark.parametrize("latest", [NOW - 1, NOW, NOW + 1, 4 * FAR])
def test_both_allow_the_same_times(compiled: Any, earliest: int, latest: int) -> None:
    batch = batch_of([50, 50], 0, (-1, -1, -1), 0, [], mended=False)

    expected = usual_python([batch], earliest, latest, MOST_BYTES)

    assert (earliest <= NOW < latest) == bool(expected[0])
    assert expected == accelerated(compiled)[1]([batch], earliest, latest, MOST_BYTES)


# Lengths of records, well written or not: with more bits or more bytes than a length may have.
LENGTHS = (
    "00 02 0e 0f 10 8000 8e00 8f00 8e8000 8e80808000 8e80808010 feffffff0f ffffffff0f 8e8080808000 80 8e80".split()
)


def with_records(records: bytes, count: int) -> memoryview:
    """A batch whose header is right in each way but what it says of the records."""
    batch = bytearray(build_batch([(None, b"v" * 100, (), NOW)])[:HEADER_SIZE]) + records
    batch[8:12] = (len(batch) - LOG_OVERHEAD).to_bytes(4, "big")
    batch[23:27], batch[57:61] = (count - 1).to_bytes(4, "big", signed=True), count.to_bytes(4, "big", signed=True)
    batch[17:CRC_START] = crc32c(bytes(batch[CRC_START:])).to_bytes(4, "big")
    return memoryview(batch)


@pytest.mark.parametrize("count", range(-1, 4))
def test_both_find_the_same_records_well_formed(compiled: Any, count: int) -> None:
    _, usual = accelerated(compiled)
    records = [bytes.fromhex(length) + bytes(size) for length in LENGTHS for size in (0, 6, 7, 8)]
    batches = [with_records(one + other, count) for one in records for other in [b"", *records]]

    verdicts = [usual_python([batch], 0, FAR, MOST_BYTES) for batch in batches]

    assert (count > 0) == any(taken for taken, *_ in verdicts)
    assert verdicts == [usual([batch], 0, FAR, MOST_BYTES) for batch in batches]


@pytest.mark.parametrize("codec", range(5))
def test_batches_are_taken(compiled: Any, codec: int) -> None:
    batch = batch_of([50, 50, 70], codec, (5, 0, 0), TRANSACTIONAL, [], mended=False)

    taken, size, newest, is_numbered = accelerated(compiled)[1]([batch, batch], 0, FAR, MOST_BYTES)

    assert ([0, len(batch)], 2 * len(batch), NOW + 1, True) == ([at for at, _ in taken], size, newest, is_numbered)


def test_no_batch_is_taken_of_none(compiled: Any) -> None:
    assert (
        ([], 0, -1, False) == usual_python((), 0, FAR, MOST_BYTES) == accelerated(compiled)[1]((), 0, FAR, MOST_BYTES)
    )


def test_calls_leave_no_reference_behind(compiled: Any) -> None:
    batch = batch_of([50], 0, (-1, -1, -1), 0, [], mended=False)
    templates, frame = templates_of(9, [("a", 0, 1, 60)]), frame_of(9, ("a", 0, 1, 60), 1)
    view = memoryview(frame)
    tables = templates._by_middle, templates._layouts, templates._tells_layout, templates._is_flexible
    follow, usual = accelerated(compiled)
    watched = [batch, view, *tables[:2], next(iter(templates._by_middle.values())).template]

    before = list(map(sys.getrefcount, watched))
    for _ in range(100):
        usual([batch, batch[:70]], 0, FAR, MOST_BYTES)
        follow(*tables, view, 10, MOST_BYTES)

    assert before == list(map(sys.getrefcount, watched))


@pytest.mark.parametrize("name", ["follow", "usual"])
def test_wrong_arguments_are_refused(compiled: Any, name: str) -> None:
    with pytest.raises(TypeError):
        getattr(compiled, name)(1)
