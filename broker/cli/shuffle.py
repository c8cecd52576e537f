"""`broker shuffle`: write and read result partitions as raw buffers, list them, release them.

Exit status 3 means that the producer of a partition has failed, so that scripts can distinguish it from other errors.

`what_listens` finds the protocol at an address, for the error message of a client that gets no answer: a frame of one
protocol is often the beginning of a longer frame of another, so that both sides wait, the client until its own time
limit.

Tests: tests/client/test_what_listens.py.
"""

import contextlib
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

import click

from broker.cli.broker_options import AddressCommand, security_options
from broker.cli.output import output_option, print_done, print_object, print_rows, say
from broker.client.security_settings import SecuritySettings
from broker.client.shuffle.errors import ProducerFailedError, ShuffleError
from broker.client.shuffle.names import parse_address, partition_id
from broker.errors import BrokerError
from broker.runtime.client_tls import TlsContext
from broker.runtime.clock import SystemClock
from broker.runtime.dial import dial
from protocol.shuffle.buffer_response import DEFAULT_BUFFER_SIZE
from protocol.shuffle.ids import DATA_SET_BYTES, Generation, ResultPartitionID

if TYPE_CHECKING:
    from broker.client.shuffle.writing.shuffle_writer import ShuffleWriter

_CORRELATION = b"\x00\x00\x2f\x51"
# ApiVersions, version 0, without a client id.
_KAFKA = b"\x00\x00\x00\x0a\x00\x12\x00\x00" + _CORRELATION + b"\xff\xff"
# CONNECT with a client version: the sizes of frame and command, type 2, field 2.
_PULSAR = b"\x00\x00\x00\x0f\x00\x00\x00\x0b\x08\x02\x12\x07\x0a\x05probe"
_PULSAR_ANSWERS = (3, 8)  # CONNECTED, ERROR
_HTTP = b"GET / HTTP/1.0\r\n\r\n"


def what_listens(host: str, port: int, tls: TlsContext | None = None, timeout_s: float = 0.4) -> str | None:
    """ "Kafka", "Pulsar" or "HTTP"; None for anything else. Takes at most three times ``timeout_s``."""
    answer = _answer(host, port, tls, timeout_s, _KAFKA, 8)
    if answer[4:8] == _CORRELATION:
        return "Kafka"
    if answer[:5] == b"HTTP/" or _answer(host, port, tls, timeout_s, _HTTP, 5) == b"HTTP/":
        return "HTTP"
    answer = _answer(host, port, tls, timeout_s, _PULSAR, 10)
    if answer[8:9] == b"\x08" and answer[9] in _PULSAR_ANSWERS:
        return "Pulsar"
    return None


def _answer(host: str, port: int, tls: TlsContext | None, timeout_s: float, request: bytes, size: int) -> bytes:
    """The first ``size`` bytes of the answer, or nothing."""
    deadline = SystemClock.monotonic() + timeout_s
    answer = bytearray(size)
    try:
        link = dial(host, port, timeout_s, tls)
    except (OSError, ValueError):
        return b""
    try:
        link.send([request], deadline)
        link.receive(memoryview(answer), deadline)
    except OSError:
        return b""
    finally:
        link.close()
    return bytes(answer)


PRODUCER_FAILED_STATUS = 3
# The maximum number of subpartitions of one `read`: each is an open file.
_SUBPARTITIONS_MAX = 4096

# How long to wait for the first answer before the listener is suspected to speak another protocol.
_CHECK_S = 0.7
# A prefix that no partition has, because a subtask index is not negative.
_NO_PARTITION = "f" * 120

Advance = Callable[[int], None]


def _to_address(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, int]:
    if value.startswith("shuffle+ssl://"):
        raise click.BadParameter("write HOST:PORT, and -X security.protocol=SSL for TLS.")
    try:
        return parse_address(value)
    except ValueError:
        raise click.BadParameter(f"write the broker's address as host:port, not as {value!r}.") from None


def _to_partition(_ctx: click.Context, _parameter: click.Parameter, value: str) -> ResultPartitionID:
    try:
        return partition_id(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def _to_released(_ctx: click.Context, parameter: click.Parameter, value: str) -> bytes:
    """A partition, or the 16 bytes of a data set."""
    if len(value.strip()) == 2 * DATA_SET_BYTES:
        with contextlib.suppress(ValueError):
            return bytes.fromhex(value)
    return _to_partition(_ctx, parameter, value)


def _to_subpartitions(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise click.BadParameter(f"write subpartitions as 0-15 or 0,3, not as {value!r}.")
        if int(last or first) - int(first) + len(numbers) >= _SUBPARTITIONS_MAX:
            raise click.BadParameter(f"name at most {_SUBPARTITIONS_MAX} subpartitions.")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(numbers))


_address = click.argument("address", metavar="HOST:PORT", callback=_to_address)
_partition = click.argument("partition", metavar="PARTITION", callback=_to_partition)
_quiet = click.option("--quiet", "-q", is_flag=True, help="Print no progress bar and no summary.")
_generation = click.option(
    "--generation",
    default=Generation.V2_0.value,
    show_default=True,
    callback=lambda _ctx, _parameter, value: _check_generation(value),
    help="The release of Flink whose protocol the listener speaks.",
)


def _check_generation(value: str) -> Generation:
    try:
        return Generation(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a release of Flink from 1.16 to 2.3.") from None


@click.group()
def command() -> None:
    """Write, read, list and release result partitions.

    A PARTITION is a plain name, such as word-count/0, the 120 hex digits of an id, or Flink's
    <data set>#<n>@<graph>_<vertex>_<subtask>_<attempt>.
    """


def _check_protocol(address: tuple[str, int], security: SecuritySettings) -> None:
    """Raises BrokerError if another protocol is spoken at the address, because neither side would report it. A Flink
    server is not distinguished from a broker: every service that speaks none of the other protocols is taken for
    one."""
    from broker.client.shuffle.admin import ShuffleAdmin
    from broker.client.shuffle.security import open_tls

    try:
        with ShuffleAdmin(address, timeout=_CHECK_S, connect_timeout=_CHECK_S, security=security) as admin:
            admin.partitions(_NO_PARTITION)
        return
    except ShuffleError:
        pass
    tls = open_tls(security)
    other = what_listens(*address, None if tls is None else tls.context)
    if other is not None:
        raise BrokerError(
            f"What listens at {address[0]}:{address[1]} speaks {other}: give the address of a shuffle:// listener"
            " (`broker serve --listener shuffle://127.0.0.1:9310`)."
        )


@command.command(cls=AddressCommand)
@_address
@_partition
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.File("rb"))
@click.option("--type", "kind", type=click.Choice(["pipelined", "blocking"]), default="pipelined", show_default=True)
@click.option(
    "--buffer-size",
    type=click.IntRange(min=1, max=16 * 1024 * 1024),
    default=DEFAULT_BUFFER_SIZE,
    show_default=True,
    help="Bytes of each buffer. Flink reads at most 32768.",
)
@click.option(
    "--ttl-ms", type=click.IntRange(min=0), help="Time until the broker removes it.  [default: the broker's setting]"
)
@click.option("--owner", default="", help="The job or user whose quota is charged.")
@_generation
@_quiet
@output_option
@security_options
def write(
    address: tuple[str, int],
    partition: ResultPartitionID,
    files: tuple[BinaryIO, ...],
    kind: str,
    buffer_size: int,
    ttl_ms: int | None,
    owner: str,
    generation: Generation,
    quiet: bool,
    as_json: bool,
    security: SecuritySettings,
) -> None:
    """Write PARTITION, with one FILE per subpartition (- is standard input).

    Each file is cut into data buffers, followed by EndOfData and EndOfPartition. A pipelined partition waits for its
    readers; a blocking one can be read when this command has ended.
    """
    from broker.client.shuffle.writing.shuffle_writer import ShuffleWriter

    _check_protocol(address, security)
    writer = ShuffleWriter(
        address,
        partition,
        len(files),
        kind,
        ttl_ms=-1 if ttl_ms is None else ttl_ms,
        owner=owner,
        generation=generation,
        security=security,
    )
    try:
        with _progress(_total(files), quiet) as advance:
            writer.open()
            buffers, size = _push_files(writer, files, buffer_size, advance)
            writer.commit()
    except BaseException as error:
        # Report the original error, not an error of the broker that results from it.
        with contextlib.suppress(ShuffleError):
            writer.fail(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        raise
    finally:
        writer.close()
    if as_json:
        print_object({"partition": partition.hex(), "subpartitions": len(files), "buffers": buffers, "bytes": size})
    elif not quiet:
        say(f"{buffers} buffers, {size} bytes in {len(files)} subpartitions", err=True)


def _push_files(
    writer: "ShuffleWriter", files: Sequence[BinaryIO], buffer_size: int, advance: "Advance"
) -> tuple[int, int]:
    """Push each file to its subpartition, and the events that end it. Returns the numbers of buffers and of bytes."""
    from protocol.shuffle.events import EndOfData, EndOfPartition

    buffers = size = 0
    # One buffer of each file in turn, so that all readers progress evenly.
    turn = deque(enumerate(files))
    while turn:
        subpartition, file = turn.popleft()
        data = file.read(buffer_size)
        if data:
            writer.push(subpartition, data)
            buffers, size = buffers + 1, size + len(data)
            advance(len(data))
            turn.append((subpartition, file))
        else:
            writer.push_event(EndOfData(), subpartition)
            writer.push_event(EndOfPartition(), subpartition)
    return buffers, size


@command.command(cls=AddressCommand)
@_address
@_partition
@click.argument("subpartitions", metavar="SUBPARTITIONS", callback=_to_subpartitions)
@click.option(
    "--credit", type=click.IntRange(min=0), default=2, show_default=True, help="Exclusive buffers of each channel."
)
@click.option(
    "--floating-buffers",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Buffers that the channels share.",
)
@click.option(
    "--out", required=True, type=click.Path(file_okay=False), help="Directory of the files; created if missing."
)
@click.option(
    "--buffer-size",
    type=click.IntRange(min=1),
    default=DEFAULT_BUFFER_SIZE,
    show_default=True,
    help="Size of the largest buffer.",
)
@click.option(
    "--codec",
    type=click.Choice(["lz4", "zstd"]),
    default="lz4",
    show_default=True,
    help="Codec of compressed buffers.",
)
@click.option(
    "--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to wait for the partition."
)
@_generation
@_quiet
@output_option
@security_options
def read(
    address: tuple[str, int],
    partition: ResultPartitionID,
    subpartitions: tuple[int, ...],
    credit: int,
    floating_buffers: int,
    out: str,
    buffer_size: int,
    codec: str,
    wait: float,
    generation: Generation,
    quiet: bool,
    as_json: bool,
    security: SecuritySettings,
) -> None:
    """Read SUBPARTITIONS (0-15, or 0,3) of PARTITION into files named by their numbers, in the directory --out.

    A file contains all data buffers of its subpartition, one after another. Exits with 3 if the producer has failed; the
    files then contain what had arrived before.
    """
    from broker.client.shuffle.reading.input_gate import InputGate

    if credit + floating_buffers == 0:
        raise click.UsageError("Leave at least one buffer: --credit and --floating-buffers are both 0.")
    _check_protocol(address, security)
    try:
        os.makedirs(out, exist_ok=True)
        files = [_create(os.path.join(out, str(index))) for index in subpartitions]
    except OSError as error:
        raise BrokerError(f"{error.filename}: {error.strerror}.") from error
    counts = [[0, 0] for _ in subpartitions]
    channels = [(address, partition, index) for index in subpartitions]
    try:
        with (
            _progress(None, quiet) as advance,
            InputGate(
                channels,
                credit=credit,
                floating_buffers=floating_buffers,
                buffer_size=buffer_size,
                codec=codec,
                partition_wait=wait,
                generation=generation,
                security=security,
            ) as gate,
        ):
            for channel, data in gate.buffers():
                files[channel].write(data)
                counts[channel][0] += 1
                counts[channel][1] += len(data)
                advance(len(data))
    except ProducerFailedError as error:
        say(f"broker: The producer has failed: {str(error).rstrip('.')}.", err=True)
        raise click.exceptions.Exit(PRODUCER_FAILED_STATUS) from error
    finally:
        for file in files:
            file.close()
    if as_json or not quiet:
        rows = [(index, *count, file.name) for index, count, file in zip(subpartitions, counts, files, strict=True)]
        print_rows(["subpartition", "buffers", "bytes", "file"], rows, as_json)


@command.command("list", cls=AddressCommand)
@_address
@click.option("--prefix", default="", help="Only partitions whose hex digits begin with this.")
@output_option
@security_options
def list_partitions(address: tuple[str, int], prefix: str, as_json: bool, security: SecuritySettings) -> None:
    """List the partitions of the broker, one per line."""
    from broker.client.shuffle.admin import ShuffleAdmin

    _check_protocol(address, security)
    with ShuffleAdmin(address, security=security) as admin:
        partitions = sorted(admin.partitions(prefix))
    rows = [
        (
            partition.partition.hex(),
            partition.type.name.lower(),
            partition.state.name.lower(),
            partition.subpartitions,
            partition.buffers,
            partition.bytes,
            partition.readers,
        )
        for partition in partitions
    ]
    print_rows(["partition", "type", "state", "subpartitions", "buffers", "bytes", "readers"], rows, as_json)


@command.command(cls=AddressCommand)
@_address
@click.argument("released", metavar="PARTITION|DATA-SET", callback=_to_released)
@click.option("--if-exists", is_flag=True, help="Do not fail if the partition does not exist.")
@output_option
@security_options
def release(
    address: tuple[str, int], released: bytes, if_exists: bool, as_json: bool, security: SecuritySettings
) -> None:
    """Remove PARTITION and free its space, or all partitions of DATA-SET (the first 32 hex digits of their ids), to which nobody
    can write after that.
    """
    from broker.client.shuffle.admin import ShuffleAdmin

    _check_protocol(address, security)
    with ShuffleAdmin(address, security=security) as admin:
        if isinstance(released, ResultPartitionID):
            existed = admin.release(released)
        else:
            existed = admin.release_data_set(released) > 0
    if existed:
        kind = "partition" if isinstance(released, ResultPartitionID) else "data_set"
        print_done("released", kind, released.hex(), as_json)
    elif not if_exists:
        kind = "partition" if isinstance(released, ResultPartitionID) else "partition of the data set"
        raise BrokerError(f"There is no {kind} {released.hex()} at {address[0]}:{address[1]}.")


@command.command("id")
@_partition
def show_id(partition: ResultPartitionID) -> None:
    """Print the id of PARTITION as hex digits, for `list --prefix` and for programs that take no names."""
    say(partition.hex())


def _create(path: str) -> BinaryIO:
    return open(path, "wb")


def _total(files: tuple[BinaryIO, ...]) -> int | None:
    """The size of all files in bytes, or None if a file is a pipe."""
    total = 0
    for file in files:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total


@contextlib.contextmanager
def _progress(total: int | None, quiet: bool) -> Iterator[Advance]:
    """A progress bar on standard error, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        waiting = 0

        def advance(size: int) -> None:
            # Once in 1 MiB: updating the bar for every buffer would cost more than moving the buffer.
            nonlocal waiting
            waiting += size
            if waiting >= 1024 * 1024:
                progress.advance(task, waiting)
                waiting = 0

        yield advance
        progress.advance(task, waiting)
