"""`broker inspect --repair`: finds what keeps partitions offline, says what is lost, and with --apply mends it.

Tests: tests/storage/repair/test_repair.py, tests/process/test_repair.py.
"""

from broker.cli.output import print_object, say
from broker.errors import BrokerError, ConfigError
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.runtime.files import explain_denial
from broker.runtime.open_files import OpenFiles
from broker.storage.data_directory import CATALOGUE, LOCK, PROPERTIES
from broker.storage.repair_partition import Diagnosis, Mending, diagnose, read_state
from broker.storage.segments.segment import LOG, file_name

_OPEN_FILES = 64


def repair(data_dir: str, only: tuple[str, ...], apply: bool, as_json: bool) -> None:
    """Raises BrokerError if there is damage that was not mended, or nothing that can be."""
    disk = SystemDisk()
    if not (disk.exists(f"{data_dir}/{PROPERTIES}") or disk.exists(f"{data_dir}/{CATALOGUE}")):
        raise ConfigError(f"Name a data directory: {data_dir} has neither {PROPERTIES} nor {CATALOGUE}.")
    try:
        try:
            lock = disk.lock(f"{data_dir}/{LOCK}")
        except BlockingIOError:
            raise ConfigError(
                f"Stop the broker that uses {data_dir} first: its files must not change meanwhile."
            ) from None
        try:
            _repair(disk, data_dir, only, apply, as_json)
        finally:
            lock.close()
    except OSError as error:
        where = str(error.filename or data_dir)
        raise BrokerError(f"{where}: {explain_denial(error, where)}.") from error


def _repair(disk: SystemDisk, data_dir: str, only: tuple[str, ...], apply: bool, as_json: bool) -> None:
    files = OpenFiles(disk, _OPEN_FILES)
    state = read_state(disk, data_dir)
    known = {f"{topic}-{partition}" for topic, partition in state.partitions}
    for name in only:
        if name not in known:
            raise ConfigError(
                f"There is no partition {name!r} in {data_dir}: write it as its directory, such as orders-0."
            )
    found = [
        diagnose(files, state, topic, partition)
        for topic, partition in state.partitions
        if not only or f"{topic}-{partition}" in only
    ]
    files.close_all()
    wrong = [each for each in found if each.has_lost or each.indexes]
    stamp = SystemClock.time_ms()
    aside = f"{data_dir}/repaired.{stamp}"
    for each in found:  # before it is mended: what is accepted as lost cannot be found a second time
        _print(each, as_json)
    if apply and wrong:
        Mending(files, state, aside).mend(wrong)
        files.close_all()
    lost = any(each.has_lost for each in found)
    if not wrong:
        say(f"{len(found)} partitions were read; nothing is damaged.", err=as_json)
    elif apply:
        kept = f" What was taken out is in {aside}." if any(each.damages for each in wrong) else ""
        say(f"{len(wrong)} of {len(found)} partitions were mended.{kept} Start the broker.", err=as_json)
    elif lost:
        raise BrokerError(
            f"{len(wrong)} of {len(found)} partitions are damaged. Nothing was changed: --apply mends them, and what is said "
            "to be lost is lost then. Restore a backup or bring missing files back first if you can."
        )
    else:
        say(
            "Nothing was changed. The broker makes such indexes again when it starts; --apply does it now.", err=as_json
        )


def _print(found: Diagnosis, as_json: bool) -> None:
    if as_json:
        fields = {
            "topic": found.topic,
            "partition": found.partition,
            "damaged": found.has_lost,
            "lost": [{"first": first, "following": following} for first, following in found.lost],
            "indexes": found.indexes,
            "end_offset": found.end_offset,
        }
        print_object(fields)
        return
    for each in found.damages:
        lost = f"offset {each.first}" if each.following == each.first + 1 else f"offsets {each.first} to "
        if each.following is None:
            lost += "the end"
        elif each.following != each.first + 1:
            lost += str(each.following - 1)
        say(
            f"{found.name}: {file_name(each.base_offset, LOG)} has {each.end - each.position} damaged bytes at {each.position}: "
            f"lost: {lost}"
        )
    for gap in found.gaps:
        say(f"{found.name}: a segment is missing: lost: offsets {gap.first} to {gap.following - 1}")
    if found.begins_late is not None:
        gap = found.begins_late
        say(f"{found.name}: the first segment is missing: lost: offsets {gap.first} to {gap.following - 1}")
    if found.ends_early is not None:
        gap = found.ends_early
        say(f"{found.name}: the log ends too early: lost: offsets {gap.first} to {gap.following - 1}")
    for base in found.indexes:
        say(f"{found.name}: an index of {file_name(base, LOG)} is missing or does not fit")
    for each in found.torn:
        say(
            f"{found.name}: {file_name(each.base_offset, LOG)} ends in a batch that was not written whole, at {each.position}; "
            "no damage: the broker cuts it off when it starts"
        )
