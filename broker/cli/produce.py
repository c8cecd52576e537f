"""`broker produce`: sends the lines of standard input to a topic, one record per line.

Tests: tests/cli/test_produce_consume.py.
"""

import os
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from broker.cli.broker_options import Target, broker_options
from broker.cli.client import client_settings, describe, plain_errors, unescape
from broker.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Callable

# Records and bytes that may be unacknowledged: enough to keep the batches full, little enough for a small machine.
_PENDING_MAX = 50_000
_PENDING_BYTES_MAX = 32 * 1024 * 1024
_DELIVERY_TIMEOUT_MS = 30_000


@click.command()
@click.argument("topic")
@broker_options
@click.option(
    "--key-separator", "-K", metavar="TEXT", help=r"Lines are KEY<TEXT>VALUE; \t is a tab.  [default: no keys]"
)
@click.option("--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, help="A header for every record.")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="The partition.  [default: by key, else any]")
@click.option(
    "--tombstones", "-Z", is_flag=True, help="An empty value is null, which deletes its key from a compacted topic."
)
@click.option(
    "--compression",
    "-z",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Codec of the batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="When the broker acknowledges a record. all: when it is on disk; 1: when the broker has it; 0: never.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print no progress bar and no count.")
def command(
    topic: str,
    target: Target,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    tombstones: bool,
    compression: str,
    acks: str,
    quiet: bool,
) -> None:
    """Send the lines of standard input to TOPIC, one record per line.

    Stops at the first line that the broker refuses, and names it. If the topic does not exist, the broker creates it
    (unless auto_create_topics_enable is off).
    """
    separator = unescape(key_separator) if key_separator else None
    pairs = [_header(pair) for pair in headers]
    source = sys.stdin.buffer
    with plain_errors(target):
        from kafka import KafkaProducer

        producer = KafkaProducer(
            **client_settings(target, "produce"),
            # The client's metrics are not used, and they cost time for every record.
            metrics_enabled=False,
            acks={"0": 0, "1": 1, "all": "all"}[acks],
            enable_idempotence=acks == "all",
            compression_type=None if compression == "none" else compression,
            # Lines that arrive slowly are sent at once; a file fills the batches.
            linger_ms=5,
            batch_size=256 * 1024,
            # The broker enforces the topic's limit, and its error says so.
            max_request_size=100 * 1024 * 1024,
            max_block_ms=_DELIVERY_TIMEOUT_MS,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            request_timeout_ms=_DELIVERY_TIMEOUT_MS // 2,
        )
        sent = _Sent()
        try:
            with _progress(source, quiet) as advance:
                for line in _lines(source):
                    key, value = _split(line, separator, sent.lines + 1)
                    if tombstones and not value:
                        value = None
                    if key is None and value is None:
                        raise BrokerError(f"Line {sent.lines + 1} is empty: with --tombstones a record needs a key.")
                    try:
                        future = producer.send(topic, value, key, list(pairs), partition)
                    except ValueError as error:  # refused by the client itself
                        raise BrokerError(str(error)) from error
                    sent.add(future, len(line))
                    advance(len(line) + 1)
                # Not producer.flush(), which fails when the client splits a batch that was too large for the broker.
                sent.settle()
        finally:
            # Everything was sent by now, unless there was an error; then the rest is not waited for.
            producer.close(timeout=1)
    if not quiet:
        click.echo(f"{sent.lines} records sent to {topic}", err=True)


class _Sent:
    """The lines that are not acknowledged yet, oldest first. Waits for the oldest one when there are too many, and raises for
    the first
    that failed."""

    def __init__(self) -> None:
        self.lines = 0
        self._pending: deque[tuple[Any, int]] = deque()
        self._pending_bytes = 0
        self._acknowledged = 0

    def add(self, future: Any, size: int) -> None:
        self.lines += 1
        self._pending.append((future, size))
        self._pending_bytes += size
        while self._pending and (
            self._pending[0][0].is_done or len(self._pending) > _PENDING_MAX or self._pending_bytes > _PENDING_BYTES_MAX
        ):
            self._settle_oldest()

    def settle(self) -> None:
        while self._pending:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        future, size = self._pending.popleft()
        try:
            future.get(timeout=_DELIVERY_TIMEOUT_MS / 1000)
        except Exception as error:
            raise BrokerError(
                f"Line {self._acknowledged + 1} was not taken: {describe(error)} "
                f"(the {self._acknowledged} lines before it are stored, some after it may be)."
            ) from error
        self._acknowledged += 1
        self._pending_bytes -= size


def _lines(source: BinaryIO) -> Iterator[bytes]:
    for line in source:
        yield line[:-1] if line.endswith(b"\n") else line


def _split(line: bytes, separator: bytes | None, number: int) -> tuple[bytes | None, bytes | None]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise BrokerError(f"Line {number} has no key: it does not contain {separator!r}.")
    return key, value


def _header(pair: str) -> tuple[str, bytes]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise click.UsageError(f"Write --header {pair} as --header name=value.")
    return name, value.encode()


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
        task = progress.add_task("", total=status.st_size - source.tell())
        waiting = 0

        def advance(size: int) -> None:
            # Once in 64 KiB: updating the bar for every line would cost more than sending the line.
            nonlocal waiting
            waiting += size
            if waiting >= 65536:
                progress.advance(task, waiting)
                waiting = 0

        yield advance
        progress.advance(task, waiting)
