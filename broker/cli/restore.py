"""`broker restore`: makes a new data directory from a backup. Needs no broker.

Tests: tests/process/test_backup.py.
"""

import os

import click

from broker.cli.client import format_time
from broker.cli.output import output_option, print_object, say
from broker.errors import BrokerError
from broker.runtime.disk import SystemDisk
from broker.runtime.files import explain_denial
from broker.storage.backup import copying


@click.command()
@click.argument("backup", metavar="BACKUP", type=click.Path(exists=True, file_okay=False))
@click.argument("data_dir", metavar="DATA_DIR", type=click.Path())
@output_option
def command(backup: str, data_dir: str, as_json: bool) -> None:
    """Make DATA_DIR, which is missing or empty, a data directory with what BACKUP has.

    Every file is checked against its checksum while it is copied. Then start a broker with --data-dir DATA_DIR: its first start
    recovers as after a crash. If this was interrupted, no broker starts there; run it again. Where root runs it and DATA_DIR
    belongs to another user, that user gets the files.
    """
    data_dir = os.path.abspath(data_dir)
    try:
        manifest = copying.restore(SystemDisk(), backup, data_dir)
    except OSError as error:
        where = str(error.filename or data_dir)
        raise BrokerError(
            f"{data_dir} is not complete: {where}: {explain_denial(error, where)}. Run the command again when that is mended."
        ) from error
    plan = manifest.plan
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
