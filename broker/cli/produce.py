"""`broker produce`: sends the lines of a file or of standard input to a topic, one record per line, with our own Kafka client.

When there is nothing to read for the moment, it sends what it has read and waits for the acknowledgement, so that slow
lines leave at once. The first Ctrl-C does the same and ends it.

Tests: tests/cli/test_produce_consume.py.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, BinaryIO

import attrs
import click

from broker.cli import completing
from broker.cli.broker_options import Target, broker_options, compression_option
from broker.cli.client import client_errors, unescape
from broker.cli.output import Interrupts, json_line, say
from broker.cli.record_format import parse_template
from broker.cli.record_input import Common, LineSource, Parser, formatted_lines, json_lines, keyed_lines, whole_lines
from broker.runtime.entropy import SystemEntropy

if TYPE_CHECKING:
    from broker.cli.record_sender import RecordSender

_DELIVERY_TIMEOUT_MS = 30_000
# The broker enforces the topic's limit, with an error that names it.
_REQUEST_BYTES_MAX = 110 * 1024 * 1024


@click.command()
@click.argument("topic", shell_complete=completing.topics)
@click.argument("file", required=False, type=click.File("rb"), default="-")
@broker_options
@click.option(
    "--key-separator", "-K", metavar="TEXT", help=r"Lines are KEY<TEXT>VALUE; \t is a tab.  [default: no keys]"
)
@click.option(
    "--format",
    "-F",
    "template",
    metavar="FORMAT",
    help="What a line looks like, in tokens of `broker consume --format`, e.g. '%k %v'.",
)
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON objects, as `broker consume --json` prints them.")
@click.option("--key", "-k", metavar="TEXT", help="A key for every record that has none of its own.")
@click.option("--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, help="A header for every record.")
@click.option(
    "--partition", "-p", type=click.IntRange(min=0), help="The partition.  [default: as the line says, by key, or any]"
)
@click.option(
    "--tombstones", "-Z", is_flag=True, help="An empty value is null, which deletes its key from a compacted topic."
)
@compression_option
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="When the broker acknowledges a record. all: when it is on disk; 1: when the broker has it; 0: never.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print no progress bar and no count.")
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: the count as an object on standard output.",
)
def command(
    topic: str,
    file: BinaryIO,
    target: Target,
    key_separator: str | None,
    template: str | None,
    as_json: bool,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    tombstones: bool,
    compression: str,
    acks: str,
    quiet: bool,
    output: str,
) -> None:
    """Send the lines of FILE, or of standard input, to TOPIC, one record per line.

    Stops at the first line that cannot be read or that the broker refuses, and names it. Ctrl-C sends what has been read and
    says how much that was; a second one ends at once. If the topic does not exist, the broker creates it (unless
    auto_create_topics_enable is off).
    """
    common = Common(_typed(key), tuple(_header(pair) for pair in headers), tombstones)
    parser = _parser(key_separator, template, as_json, common)
    from broker.cli.record_sender import RecordSender
    from broker.client.kafka.cluster import Cluster

    config = attrs.evolve(
        target.config("produce"), delivery_timeout_ms=_DELIVERY_TIMEOUT_MS, max_request_size=_REQUEST_BYTES_MAX
    )
    with ExitStack() as stack:
        stack.enter_context(client_errors(target))
        cluster = stack.enter_context(Cluster(config))
        sender = RecordSender(
            cluster,
            topic,
            parser,
            partition=partition,
            acks=acks,
            codec=compression,
            rotation=SystemEntropy.bytes(1)[0],
        )
        stack.callback(sender.close)
        try:
            interrupted = _send_all(sender, file, quiet)
        except KeyboardInterrupt:
            _report(topic, sender, output, quiet, "interrupted: at least ")
            raise
        _report(topic, sender, output, quiet, "interrupted: " if interrupted else "")
    if interrupted:
        raise KeyboardInterrupt


def _send_all(sender: "RecordSender", file: BinaryIO, quiet: bool) -> bool:
    """Returns whether Ctrl-C has ended the input. A second Ctrl-C raises KeyboardInterrupt."""
    source = LineSource(file.fileno())
    with Interrupts() as interrupts, _progress(file, quiet) as advance:
        chunks = source.chunks()
        shown = 0
        while not interrupts.requested:
            try:
                with interrupts.allowed():
                    lines = next(chunks, None)
            except KeyboardInterrupt:
                lines = source.whole_lines()
            if lines is None:
                break
            if lines:
                sender.send(lines)
            else:
                sender.flush()
            shown, size = sender.bytes, sender.bytes - shown
            advance(size)
        sender.flush()
        return interrupts.requested


def _report(topic: str, sender: "RecordSender", output: str, quiet: bool, before: str) -> None:
    if output == "json":
        click.echo(json_line({"topic": topic, "records": sender.acknowledged, "bytes": sender.bytes}), nl=False)
    elif not quiet:
        records = f"{sender.acknowledged} record{'s' * (sender.acknowledged != 1)}"
        say(f"{before}{records} sent to {topic}", err=True)


def _parser(separator: str | None, template: str | None, as_json: bool, common: Common) -> Parser:
    if (separator is not None) + (template is not None) + as_json > 1:
        raise click.UsageError("Use only one of --key-separator, --format and --json.")
    if as_json:
        return json_lines(common)
    if template is not None:
        return formatted_lines(parse_template(template), common)
    if separator:
        return keyed_lines(unescape(separator), common)
    return whole_lines(common)


def _typed(text: str | None) -> bytes | None:
    """The bytes of an argument as it was typed, even if it is not UTF-8."""
    return None if text is None else os.fsencode(text)


def _header(pair: str) -> tuple[bytes, bytes]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise click.UsageError(f"Write --header {pair} as --header name=value.")
    return os.fsencode(name), os.fsencode(value)


@contextmanager
def _progress(source: BinaryIO, quiet: bool) -> "Iterator[Callable[[int], object]]":
    """A progress bar on standard error, if the input is a file and standard error is a terminal."""
    status = os.fstat(source.fileno())
    if quiet or not stat.S_ISREG(status.st_mode) or not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=status.st_size - os.lseek(source.fileno(), 0, os.SEEK_CUR))
        yield lambda size: progress.advance(task, size)
