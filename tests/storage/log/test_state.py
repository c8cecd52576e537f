"""The shared state of a log: what is published as one, and how failures change it."""

import errno
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.runtime.open_files import OpenFiles
from broker.storage.log.log_config import LogConfig
from broker.storage.log.state import LogState
from broker.storage.segments.segment import Segment, new_segment
from tests.storage.helpers import FaultyDisk, HandClock


class Place:
    """A state over real files, and how often it asked for its watchers to be woken."""

    def __init__(self, directory: Path) -> None:
        self.disk = FaultyDisk()
        self.files = OpenFiles(self.disk, 10)
        self.directory = str(directory)
        self.woken = 0
        self.state = LogState(
            disk=self.disk,
            clock=HandClock(),
            directory=self.directory,
            topic="t",
            partition=3,
            topic_id=uuid.UUID(int=1),
            config=LogConfig(),
            wake_soon=self._wake,
            observe_fsync=lambda seconds: None,
        )
        self.state.offline = None

    def _wake(self) -> None:
        self.woken += 1

    def segment(self, base_offset: int) -> Segment:
        return new_segment(self.files, self.directory, base_offset, 0)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.files.close_all()


def test_state_is_offline_until_its_log_is_opened(tmp_path: Path) -> None:
    place = Place(tmp_path)
    fresh = LogState(
        disk=place.disk,
        clock=HandClock(),
        directory=place.directory,
        topic="t",
        partition=3,
        topic_id=uuid.UUID(int=1),
        config=LogConfig(),
        wake_soon=lambda: None,
        observe_fsync=lambda seconds: None,
    )
    assert "t-3 is not open yet" == str(fresh.offline)


def test_the_end_is_published_as_one(place: Place) -> None:
    segment = place.segment(0)
    segment.size = 70
    place.state.publish(5, segment)
    assert (5, segment, 70) == place.state.tail
    assert (5, 5) == (place.state.high_watermark, place.state.log_end_offset)


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, [0, 10, 20]), (9, [0, 10, 20]), (10, [10, 20]), (25, [20]), (99, [20])]
)
def test_the_segments_from_an_offset_on(place: Place, offset: int, expected: list[int]) -> None:
    place.state.set_segments(tuple(place.segment(base) for base in (0, 10, 20)))
    assert (0, 10, 20) == place.state.view.bases
    assert expected == [segment.base_offset for segment in place.state.segments_from(offset)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EINTR])
def test_an_error_that_passes_leaves_the_partition_online(place: Place, code: int) -> None:
    error = place.state.failed("it could not be done", OSError(code, "why"))
    assert "t-3: it could not be done" in str(error)
    assert (None, 0) == (place.state.offline, place.woken)


def test_other_error_takes_offline_once_and_wakes_watchers(place: Place) -> None:
    first = place.state.failed("it could not be done", OSError(errno.EIO, "why"))
    second = place.state.go_offline("something else")
    assert "t-3 is offline: it could not be done" in str(first)
    assert "t-3 is offline: something else" == str(second)
    assert str(first) == str(place.state.offline) == str(place.state.why_unavailable())
    assert first is not place.state.offline, "what is raised must not be what is kept"
    assert 1 == place.woken


def test_a_write_that_failed_is_cut_off(place: Place) -> None:
    segment = place.segment(0)
    segment.log.get().pwrite([b"whole", b"half"], 0)
    error = place.state.undo_write(segment, 5, OSError(errno.ENOSPC, "full"))
    assert isinstance(error, StorageError)
    assert (5, True, None) == (segment.log.size(), place.state.cut_unsynced, place.state.offline)


def test_failed_write_that_cannot_be_cut_takes_offline(place: Place) -> None:
    segment = place.segment(0)
    place.disk.fail["truncate", ".log"] = errno.EIO
    place.state.undo_write(segment, 0, OSError(errno.ENOSPC, "full"))
    assert "could not be undone" in str(place.state.offline)
    assert not place.state.cut_unsynced
