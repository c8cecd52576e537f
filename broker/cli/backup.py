"""`broker backup`: copies the data of a running broker, or checks a copy.

The broker fixes one moment of its data and pins the files of that moment; this process copies them, without the
broker's threads. It must run where the broker's data directory is: on its machine, or in its container.

Tests: tests/process/test_backup.py.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from broker.cli.broker_options import Target, broker_options
from broker.cli.client import format_time
from broker.cli.output import output_option, print_object, say
from broker.client.kafka.admin.cluster import BackupClient, Pinned
from broker.client.kafka.routing import Routing
from broker.errors import BrokerError
from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.runtime.files import explain_denial
from broker.runtime.objects import ObjectError, ObjectStore
from broker.storage.backup import copying
from broker.storage.backup.layout import PLAN, Manifest, Plan, plan_from_json
from broker.storage.backup.object_backups import ObjectBackup, check_place, put_backup

# The broker gives a backup up after a minute without a sign of life.
_RENEW_S = 10.0


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path())
@click.option(
    "--since",
    metavar="EARLIER",
    type=click.Path(exists=True, file_okay=False),
    help="An earlier backup: closed segments that are in it are not copied again. On the same disk they are linked and take no"
    " more room.",
)
@click.option("--verify", is_flag=True, help="Copy nothing, and check the backup in DIR. Needs no broker.")
@output_option
@broker_options
def command(directory: str, since: str | None, verify: bool, as_json: bool, target: Target) -> None:
    """Copy the data of a running broker to the new directory DIR, or to an object store (s3://bucket/prefix, ...).

    The copy is as of one moment: it has everything that was acknowledged before the command began, and a broker that starts on
    it finds what it would find after it was killed at that moment. The broker serves its clients meanwhile. Run this on the
    broker's machine or in its container, as the broker's user or as root. If it was interrupted, run it again: it continues.
    In an object store it begins anew, and nothing else may be under the same prefix.
    """
    store = _store(directory, verify)
    if store is not None and since is not None:
        raise click.UsageError("--since goes with a directory only: in an object store, every backup is whole.")
    if verify:
        _verify(directory, store, as_json)
        return
    disk = SystemDisk()
    directory = os.path.abspath(directory) if store is None else store.name
    with _plain_errors(directory):
        if store is None:
            copying.check_target(disk, directory)
        else:
            check_place(store)
    clock = SystemClock()
    routing = Routing(target.config("backup"), clock)
    try:
        client = BackupClient(routing)
        pinned = client.begin()
        try:
            plan = read_plan(pinned)
            heard = clock.monotonic()

            def tick(_: int) -> None:
                nonlocal heard
                if clock.monotonic() - heard > _RENEW_S:
                    client.renew(pinned)
                    heard = clock.monotonic()

            with _plain_errors(directory):
                if store is None:
                    copied = copying.copy_backup(disk, plan, pinned.directory, directory, since, tick)
                else:
                    copied = copying.Copied(*put_backup(plan, pinned.directory, store, tick))
        finally:
            _release(client, pinned)
    finally:
        routing.close()
    _report(directory, plan, copied, as_json)


def _store(place: str, verify: bool) -> ObjectStore | None:
    """None for a directory. Raises ConfigError."""
    if "://" not in place:
        return None
    from broker.runtime.open_objects import open_objects

    return open_objects(place, read_only=verify)


def _release(client: BackupClient, pinned: Pinned) -> None:
    try:
        client.end(pinned)
    except BrokerError:
        pass  # the broker ends the backup by itself after a while


def read_plan(pinned: Pinned) -> Plan:
    path = f"{pinned.directory}/{PLAN}"
    try:
        with open(path, encoding="utf-8") as file:
            plan = plan_from_json(json.load(file))
    except PermissionError as error:
        raise BrokerError(f"The broker's files cannot be read: {explain_denial(error, pinned.directory)}.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        plan = None
        reason = str(error)
    if plan is None or plan.backup_id != pinned.backup_id:
        raise BrokerError(
            f"The broker's data directory {os.path.dirname(pinned.directory)} is not on this machine"
            f"{f' ({reason})' if plan is None else ''}: run the command where the broker runs, for example with "
            "`docker compose exec broker broker backup DIR`."
        )
    return plan


@contextmanager
def _plain_errors(directory: str) -> Iterator[None]:
    try:
        yield
    except ObjectError as error:
        raise BrokerError(
            f"The backup in {directory} is not complete: {error}. Run the command again when that is mended."
        ) from error
    except OSError as error:
        where = error.filename or directory
        raise BrokerError(
            f"The backup in {directory} is not complete: {where}: {explain_denial(error, str(where))}. "
            "Run the command again when that is mended: it continues."
        ) from error


def _report(directory: str, plan: Plan, copied: copying.Copied, as_json: bool) -> None:
    offline = [f"{partition.topic}-{partition.partition}" for partition in plan.partitions if partition.offline]
    if as_json:
        fields = {
            "directory": directory,
            "backup_id": plan.backup_id,
            "taken_ms": plan.taken_ms,
            "partitions": len(plan.partitions),
            "offline": offline,
            "files": copied.files,
            "bytes": copied.size,
            "reused_files": copied.reused,
            "reused_bytes": copied.reused_size,
        }
        print_object(fields)
        return
    say(
        f"{directory}: {len(plan.partitions)} partitions as of {format_time(plan.taken_ms)}, "
        f"{copied.files} files of {copied.size} bytes"
        + (f", of which {copied.reused} of {copied.reused_size} bytes were there already" if copied.reused else "")
    )
    for name in offline:
        say(f"{name} is offline: its files were copied as they are", err=True)


def _verify(directory: str, store: ObjectStore | None, as_json: bool) -> None:
    try:
        if store is None:
            manifest, problems = copying.verify(SystemDisk(), directory)
        else:
            manifest, problems = ObjectBackup(store).verify(lambda _: None)
    except ObjectError as error:
        raise BrokerError(f"{error}.") from error
    except OSError as error:
        raise BrokerError(f"{directory} cannot be read: {explain_denial(error, directory)}.") from error
    if as_json:
        fields = {**_described(manifest), "directory": directory, "problems": problems}
        print_object(fields)
    else:
        for problem in problems:
            say(problem, err=True)
    if problems:
        raise BrokerError(f"The backup in {directory} cannot be trusted: {len(problems)} of its files are wrong.")
    if not as_json:
        described = _described(manifest)
        say(
            f"{directory}: whole; {described['partitions']} partitions as of {format_time(manifest.plan.taken_ms)}, "
            f"{described['files']} files of {described['bytes']} bytes"
        )


def _described(manifest: Manifest) -> dict[str, object]:
    return {
        "backup_id": manifest.plan.backup_id,
        "taken_ms": manifest.plan.taken_ms,
        "cluster_id": manifest.plan.cluster_id,
        "version": manifest.plan.version,
        "partitions": len(manifest.plan.partitions),
        "files": len(manifest.files),
        "bytes": sum(file.size for file in manifest.files),
    }
