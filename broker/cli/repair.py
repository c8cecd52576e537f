"""`broker inspect --repair`: finds the damage that keeps partitions offline, reports the losses, and with --apply
repairs it.

Tests: tests/storage/repair/test_repair.py, tests/process/test_repair.py.
"""

from broker.cli.output import print_object, say
from broker.errors import BrokerError, ConfigError
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.runtime.files import explain_denial
from broker.runtime.open_files import OpenFiles
from broker.server.node_directories import gather
from broker.storage.data_directory import CATALOGUE, LOCK, PROPERTIES
from broker.storage.repair_partition import Diagnosis, Mending, diagnose, read_state
from broker.storage.segments.segment import LOG, file_name

_OPEN_FILES = 64


def repair(data_dir: str, only: tuple[str, ...], apply: bool, as_json: bool) -> None:
    """Raises BrokerError for damage that was not repaired, or cannot be."""
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
            gather(disk, data_dir)
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
    diagnoses = [
        diagnose(files, state, topic, partition)
        for topic, partition in state.partitions
        if not only or f"{topic}-{partition}" in only
    ]
    files.close_all()
    wrong = [diagnosis for diagnosis in diagnoses if diagnosis.has_lost or diagnosis.indexes]
    stamp = SystemClock.time_ms()
    aside = f"{data_dir}/repaired.{stamp}"
    for diagnosis in diagnoses:  # before the repair, which accepts the losses: they cannot be diagnosed again
        _print(diagnosis, as_json)
    if apply and wrong:
        Mending(files, state, aside).mend(wrong)
        files.close_all()
    lost = any(diagnosis.has_lost for diagnosis in diagnoses)
    if not wrong:
        say(f"{len(diagnoses)} partitions were read; nothing is damaged.", err=as_json)
    elif apply:
        kept = f" What was taken out is in {aside}." if any(diagnosis.damages for diagnosis in wrong) else ""
        say(f"{len(wrong)} of {len(diagnoses)} partitions were mended.{kept} Start the broker.", err=as_json)
    elif lost:
        raise BrokerError(
            f"{len(wrong)} of {len(diagnoses)} partitions are damaged. Nothing was changed: --apply mends them, and what is said "
            "to be lost is lost then. Restore a backup or bring missing files back first if you can."
        )
    else:
        say(
            "Nothing was changed. The broker makes such indexes again when it starts; --apply does it now.", err=as_json
        )


def _print(diagnosis: Diagnosis, as_json: bool) -> None:
    if as_json:
        fields = {
            "topic": diagnosis.topic,
            "partition": diagnosis.partition,
            "damaged": diagnosis.has_lost,
            "lost": [{"first": first, "following": following} for first, following in diagnosis.lost],
            "indexes": diagnosis.indexes,
            "end_offset": diagnosis.end_offset,
        }
        print_object(fields)
        return
    for damage in diagnosis.damages:
        lost = f"offset {damage.first}" if damage.following == damage.first + 1 else f"offsets {damage.first} to "
        if damage.following is None:
            lost += "the end"
        elif damage.following != damage.first + 1:
            lost += str(damage.following - 1)
        say(
            f"{diagnosis.name}: {file_name(damage.base_offset, LOG)} has {damage.end - damage.position} damaged bytes "
            f"at {damage.position}: "
            f"lost: {lost}"
        )
    for gap in diagnosis.gaps:
        say(f"{diagnosis.name}: a segment is missing: lost: offsets {gap.first} to {gap.following - 1}")
    if diagnosis.begins_late is not None:
        gap = diagnosis.begins_late
        say(f"{diagnosis.name}: the first segment is missing: lost: offsets {gap.first} to {gap.following - 1}")
    if diagnosis.ends_early is not None:
        gap = diagnosis.ends_early
        say(f"{diagnosis.name}: the log ends too early: lost: offsets {gap.first} to {gap.following - 1}")
    for base in diagnosis.indexes:
        say(f"{diagnosis.name}: an index of {file_name(base, LOG)} is missing or does not fit")
    for damage in diagnosis.torn:
        say(
            f"{diagnosis.name}: {file_name(damage.base_offset, LOG)} ends in a batch that was not written whole, "
            f"at {damage.position}; no damage: the broker cuts it off when it starts"
        )
