"""`broker restore`: makes a new data directory from a backup, or from the object store of a broker whose disk is lost. Needs no
broker.

Tests: tests/process/test_backup.py, tests/durable/test_restore.py.
"""

import os
from typing import TYPE_CHECKING

import click

from broker.cli.client import format_time
from broker.cli.output import output_option, print_object, say
from broker.errors import BrokerError
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.runtime.files import explain_denial
from broker.runtime.objects import ObjectError
from broker.storage.backup.copying import DirectoryBackup, Source, restore

if TYPE_CHECKING:
    from broker.storage.tier.lost_disk import Rebuilt

_SHOWN = 20


@click.command()
@click.argument("places", metavar="[BACKUP] DATA_DIR", nargs=-1, type=click.Path())
@click.option(
    "--from",
    "store",
    metavar="URL",
    help="Take a backup that `broker backup` has put there, or what a broker with --objects has: s3://bucket/prefix,"
    " file:///directory, ...",
)
@output_option
def command(places: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Make DATA_DIR, which is missing or empty, a data directory with what BACKUP has.

    Every file is checked against its checksum while it is copied. Then start a broker with --data-dir DATA_DIR: its first start
    recovers as after a crash. If this was interrupted, no broker starts there; run it again. Where root runs it and DATA_DIR
    belongs to another user, that user gets the files.

    With --from there is no BACKUP. If the store is that of a broker with --objects, whose disk is lost, DATA_DIR gets the newest
    copy of its catalogue, which is about a minute old, and the segments stay in the store. What was not uploaded is lost: the end
    of each partition.
    """
    if len(places) != (2 if store is None else 1):
        raise click.UsageError("Name BACKUP, or --from, and DATA_DIR.")
    source = store or places[0]
    data_dir = os.path.abspath(places[-1])
    if "://" not in source and not os.path.isdir(source):
        raise click.UsageError(f"There is no directory {source}.")
    try:
        if "://" in source:
            _restore_from_store(source, data_dir, as_json)
        else:
            _restore(DirectoryBackup(SystemDisk(), source), data_dir, as_json)
    except ObjectError as error:
        raise BrokerError(f"{data_dir} is not complete: {error}. Run the command again when that is mended.") from error
    except OSError as error:
        where = str(error.filename or data_dir)
        raise BrokerError(
            f"{data_dir} is not complete: {where}: {explain_denial(error, where)}. Run the command again when that is mended."
        ) from error


def _restore(backup: Source, data_dir: str, as_json: bool) -> None:
    plan = restore(SystemDisk(), backup, data_dir).plan
    if as_json:
        print_object(
            {
                "data_dir": data_dir,
                "backup_id": plan.backup_id,
                "taken_ms": plan.taken_ms,
                "partitions": len(plan.partitions),
            }
        )
        return
    say(
        f"{data_dir}: {len(plan.partitions)} partitions as of {format_time(plan.taken_ms)}. "
        f"Start the broker with --data-dir {data_dir}"
    )


def _restore_from_store(url: str, data_dir: str, as_json: bool) -> None:
    from broker.runtime.open_objects import open_objects
    from broker.storage.backup.object_backups import ObjectBackup

    objects = open_objects(url, read_only=True)
    backup = ObjectBackup(objects)
    if backup.exists():
        _restore(backup, data_dir, as_json)
        return
    from broker.pulsar.subscriptions.cursor import cut_state
    from broker.storage.tier.lost_disk import rebuild

    _report(rebuild(SystemDisk(), objects, data_dir, SystemClock.time_ms(), cut_state), url, data_dir, as_json)


def _report(rebuilt: "Rebuilt", url: str, data_dir: str, as_json: bool) -> None:
    if as_json:
        import attrs

        print_object({"data_dir": data_dir, **attrs.asdict(rebuilt)})
        return
    for path in rebuilt.missing[:_SHOWN]:
        say(f"{path} is in the store no more", err=True)
    if len(rebuilt.missing) > _SHOWN:
        say(f"and {len(rebuilt.missing) - _SHOWN} more", err=True)
    say(
        f"{data_dir}: {rebuilt.partitions} partitions as of {format_time(rebuilt.taken_ms)}, {rebuilt.segments} segments of "
        f"{rebuilt.bytes} bytes in the store. What had not been uploaded is lost. "
        f"Start the broker with --data-dir {data_dir} --objects {url}"
    )
