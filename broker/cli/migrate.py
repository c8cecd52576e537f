"""`broker migrate`: moves a stopped broker into PostgreSQL and an object store, or back into a data directory.

``broker/server/to_database.py`` and ``to_directory.py`` do it. On a terminal a bar shows how far it is, otherwise a line every
ten seconds.

Tests: tests/durable/test_migration.py.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

from broker.cli.output import output_option, print_object, say
from broker.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.server.moving import Moved

_EVERY_S = 10.0


def state_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the state is: ``catalogue``, ``schema`` and ``objects``, for ``config_of``."""
    url = (
        "postgresql://user@host:port/database. Others see the arguments of a process: give a password in BROKER_CATALOGUE, which"
        " has the whole URL, or in PGPASSWORD."
    )
    place = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///directory."
    schema = "Schema of the broker's tables in that database.  [default: broker]"
    function = click.option("--objects", metavar="URL", help=place)(function)
    function = click.option("--schema", metavar="NAME", help=schema)(function)
    return click.option("--catalogue", metavar="URL", help=url)(function)


@click.command()
@click.option(
    "--data-dir", metavar="DIR", required=True, help="The stopped broker's data directory; with --back a new one."
)
@state_options
@click.option("--back", is_flag=True, help="From the database and the store into the new directory DIR.")
@output_option
def command(
    data_dir: str, catalogue: str | None, schema: str | None, objects: str | None, back: bool, as_json: bool
) -> None:
    """Move a stopped broker from its data directory into PostgreSQL and an object store, or back.

    Everything comes along: records with their offsets, groups, transactions, subscriptions, producers, users, settings. The
    schema, or with --back the directory, must be empty. What is moved is not changed; do not start a broker on it any more. If
    this was interrupted, no broker starts on what it has made; run it again.
    """
    config = config_of(data_dir, catalogue, schema, objects)
    data_dir = config.data_dir
    from broker.runtime import system_runtime
    from broker.server.to_database import into_database
    from broker.server.to_directory import into_directory

    move = into_directory if back else into_database
    with moving(as_json, data_dir) as progress:
        moved = move(config, data_dir, system_runtime(), progress)
    _report(moved, config, data_dir, back, as_json)


def config_of(data_dir: str, catalogue: str | None, schema: str | None, objects: str | None) -> "BrokerConfig":
    """Settings of the environment count where an option is missing."""
    import attrs

    from broker.config import load

    given = {"catalogue": catalogue, "catalogue_schema": schema, "objects": objects}
    config = load(None, source="", variables=os.environ, **{name: value for name, value in given.items() if value})
    if config.catalogue is None or config.objects is None:
        raise ConfigError("Name the database with --catalogue and the object store with --objects.")
    return attrs.evolve(config, data_dir=os.path.abspath(os.path.expanduser(data_dir)))


@contextmanager
def moving(as_json: bool, data_dir: str) -> Iterator["_Progress"]:
    """Show how far it is. Events are for brokers; what went wrong is said by errors."""
    from broker import log

    log.configure("error", "text", colours=False)
    try:
        with _progress(as_json) as progress:
            yield progress
    except OSError as error:
        raise BrokerError(f"{_what(error, data_dir)}. Run the command again when that is mended.") from error


def _what(error: OSError, data_dir: str) -> str:
    from broker.runtime.files import explain_denial
    from broker.runtime.objects import ObjectError

    if isinstance(error, ObjectError):
        return str(error)
    where = str(error.filename or data_dir)
    return f"{where}: {explain_denial(error, where)}"


class _Progress(Protocol):
    def begin(self, what: str, total: int) -> None: ...

    def advance(self, size: int) -> None: ...


class _Lines:
    """Plain lines on standard error."""

    def __init__(self) -> None:
        from broker.runtime.clock import SystemClock

        self._now = SystemClock.monotonic
        self._what, self._total, self._done, self._due = "", 0, 0, 0.0

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        say(f"{what}: {total} bytes" if total else what, err=True)
        self._due = self._now() + _EVERY_S

    def advance(self, size: int) -> None:
        self._done += size
        if self._now() >= self._due:
            self._due = self._now() + _EVERY_S
            say(f"{self._what}: {self._done} of {self._total} bytes", err=True)


class _Bar:
    """A bar of rich's."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._task: Any = None
        self._done = 0

    def begin(self, what: str, total: int) -> None:
        if self._task is not None:  # its total may not have been known
            self._bars.update(self._task, total=self._done, completed=self._done)
        self._task, self._done = self._bars.add_task(what, total=total or None), 0

    def advance(self, size: int) -> None:
        self._done += size
        self._bars.advance(self._task, size)


@contextmanager
def _progress(as_json: bool) -> Iterator[_Progress]:
    if as_json or not sys.stderr.isatty():
        yield _Lines()
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bars:
        yield _Bar(bars)


def _report(moved: "Moved", config: "BrokerConfig", data_dir: str, back: bool, as_json: bool) -> None:
    import attrs

    if as_json:
        print_object({"data_dir": data_dir, "back": back, **attrs.asdict(moved)})
        return
    for name in moved.left:
        say(f"{data_dir}/{name} is no broker's and stays where it is", err=True)
    counted = (
        f"{moved.partitions} partitions: {moved.segments} segments of {moved.segment_bytes} bytes "
        f"{'from' if back else 'as'} objects, {moved.files} other files of {moved.file_bytes} bytes."
    )
    if back:
        say(f"{data_dir}: {counted} Start the broker with --data-dir {data_dir}, without catalogue and objects.")
        say("Do not start a broker on the database any more: drop its schema when you are sure.")
        return
    say(f"{counted} Start the broker with --catalogue, --objects {config.objects} and an empty --data-dir.")
    say(f"Do not start a broker on {data_dir} any more: remove it when you are sure.")
