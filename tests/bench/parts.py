"""What the smallest element of each array of a request costs, repeated: CPU of the broker, by the threads that spend it.

Each array of each Kafka request is filled up to 1 MiB, which is usually refused by the number of entries, and with as many
entries as one request may have. The elements are empty, or name a topic of 200 partitions that is also a group. For shuffle and
HTTP, the parts are listed here. The dearest come first; ``--every`` shows all. An answer of 0 bytes: the connection was closed;
of -1: there was none.

The broker runs in this process, and the CPU is that of its threads (``/proc/self/task``), so it takes Linux.
"""

import argparse
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from broker.kafka.handlers import load
from broker.network.work import REQUEST_ENTRIES_MAX
from protocol.kafka.schema import control
from protocol.shuffle import messages, writer_frames
from protocol.shuffle.ids import ResultPartitionID
from protocol.shuffle.writer_values import MAX_SUBPARTITIONS, PartitionType
from tests.bench.frame import Options, Row, Section
from tests.faults.test_kafka_entries import Tempting, repeated
from tests.kafka.handlers.kafka_client import Kafka
from tests.protocol.kafka.message_strategies import REQUEST, SERVED, schema_of
from tests.protocol.kafka.schema.test_budget import arrays, smallest

SIZE = 1024 * 1024
GROUPS = ("processor", "handler")
PATIENCE_S = 10  # some requests have no answer, or are answered at some event
NEVER = -1


def cpu_ms() -> dict[str, float]:
    """Of the broker's threads until now, by their kind."""
    spent = dict.fromkeys((*GROUPS, "other"), 0.0)
    for thread in threading.enumerate():
        if thread is threading.main_thread():
            continue
        try:
            on_cpu = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
        except FileNotFoundError:
            continue
        kind = next((kind for kind in GROUPS if f"{kind}-" in thread.name), "other")
        spent[kind] += int(on_cpu) / 1e6
    return spent


def exchange(address: tuple[str, int], request: bytes, *, streams: bool) -> int:
    """Bytes of the answer; 0: the connection was closed without one. ``streams``: all that comes until then, or for a second."""
    size, wanted, head = 0, 4, b""
    with socket.create_connection(address, PATIENCE_S) as client:
        sending = threading.Thread(target=_send, args=(client, request), name="sending")
        sending.start()
        if streams:
            client.settimeout(1)
        try:
            while size < wanted:
                piece = client.recv(1 << 20)
                if not piece:
                    break
                size += len(piece)
                head = (head + piece)[:4]
                if streams:
                    wanted = size + 1
                elif len(head) == 4:
                    wanted = 4 + struct.unpack(">i", head)[0]
        except TimeoutError:
            size = size or NEVER
        except ConnectionError:
            pass
    sending.join()
    return size


def _send(client: socket.socket, request: bytes) -> None:
    try:
        client.sendall(request)
    except OSError:
        pass  # it was closed


def measure(name: str, address: tuple[str, int], request: bytes, *, streams: bool = False) -> Row:
    before = cpu_ms()
    answer = exchange(address, request, streams=streams)
    after = cpu_ms()
    while True:  # work that goes on after the answer
        time.sleep(0.02)
        now = cpu_ms()
        if sum(now.values()) - sum(after.values()) < 2:
            break
        after = now
    spent = {f"{kind} ms": now[kind] - before[kind] for kind in now}
    return Row(name, {"bytes": len(request), "answer": answer, **spent})


def kafka_requests(name: str) -> Iterator[tuple[str, bytes]]:
    """Name and bytes. ``name``: of a topic and group that are there."""
    served = load()
    for key, versions in SERVED.items():
        if key not in served:
            continue
        for version in sorted({min(versions), max(versions)}):
            cls = schema_of(REQUEST, key, version)
            for path in arrays(cls):
                what = f"{key.name.lower()}-v{version} {'.'.join(path)}"

                def frame(times: int, of: Any, key: Any = key, version: int = version) -> bytes:
                    return control.encode_request(key, version, 7, "x", of(times))

                def empty(times: int, cls: Any = cls, path: Any = path) -> Any:
                    return smallest(cls, path, times)

                def named(times: int, cls: Any = cls, path: Any = path) -> Any:
                    return repeated(cls, path, name, False, times)

                most = REQUEST_ENTRIES_MAX - 20
                each = max(1, len(frame(1002, empty)) - len(frame(1001, empty)))
                yield f"{what}, 1 MiB", frame(SIZE // each, empty)
                yield f"{what}, empty", frame(min(SIZE // each, most), empty)
                each = max(1, len(frame(1002, named)) - len(frame(1001, named)))
                yield f"{what}, named", frame(min(SIZE // each, most // 2), named)


def http_requests(host: str) -> Iterator[tuple[str, bytes]]:
    def request(target: str, headers: str = "", body: str = "", method: str = "GET") -> bytes:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        return (head + headers + length + "\r\n" + body).encode()

    for size in (8 * 1024, 60 * 1024, SIZE):
        kib = f"{size // 1024} KiB"
        yield f"headers, {kib}", request("/healthz", "a:\r\n" * (size // 4))
        yield f"one header in lines, {kib}", request("/healthz", "a:" + ",\r\n " * (size // 4) + "\r\n")
        yield f"query parameters, {kib}", request("/api/v1/topics?" + "&" * size)
        yield f"query parameters with names, {kib}", request("/api/v1/topics?" + "a=&" * (size // 3))
        yield f"parts of a path, {kib}", request("/api/v1" + "/a" * (size // 2))
        yield f"escapes in a path, {kib}", request("/api/v1/topics/" + "%41" * (size // 3))
    json_type = "Content-Type: application/json\r\n"
    for what, body in {
        "arrays in arrays": "[" * 400 + "]" * 400,
        "array of numbers": "[" + "1," * (SIZE // 2) + "1]",
        "array of arrays": "[" + "[]," * (SIZE // 3) + "[]]",
        "array of objects": "[" + "{}," * (SIZE // 3) + "{}]",
        "object of names": "{" + ",".join(f'"{number}":0' for number in range(SIZE // 9)) + "}",
        "one name again and again": "{" + '"a":0,' * (SIZE // 6) + '"a":0}',
        "digits of one number": '{"a":' + "1" * SIZE + "}",
        "escapes": '{"a":"' + "\\u0041" * (SIZE // 6) + '"}',
    }.items():
        yield f"JSON, {what}", request("/api/v1/topics", json_type, body, "POST")
    chunks = "Transfer-Encoding: chunked\r\n" + json_type
    yield "chunks of 1 byte", request("/api/v1/topics", chunks, "", "POST") + b"1\r\n1\r\n" * (SIZE // 6) + b"0\r\n\r\n"
    yield "trailers", request("/api/v1/topics", chunks, "", "POST") + b"0\r\n" + b"a:\r\n" * (SIZE // 4) + b"\r\n"


def shuffle_requests() -> Iterator[tuple[str, bytes]]:
    """Streams of the smallest frames, and the largest demand of a single frame."""

    def opened(number: int, subpartitions: int) -> bytes:
        partition = ResultPartitionID.of(b"s" * 16, number)
        return writer_frames.encode_open_partition(b"w" * 16, partition, subpartitions, PartitionType.BLOCKING)

    receiver = b"r" * 16
    yield "65,536 subpartitions", opened(1_000_000, MAX_SUBPARTITIONS)
    yield "65,536 subpartitions, 20 times", b"".join(opened(number, MAX_SUBPARTITIONS) for number in range(20))
    yield "2,000 partitions", b"".join(opened(number, 1) for number in range(100, 2100))
    yield "list of all", writer_frames.encode_list_partitions(1)
    for what, frame in {
        "lists of none": writer_frames.encode_list_partitions(1, "none"),
        "lists": writer_frames.encode_list_partitions(1),
        "credits": messages.encode_add_credit(receiver, 1),
        "cancellations": messages.encode_cancel_partition_request(receiver),
        "resumptions": messages.encode_resume_consumption(receiver),
        "acknowledgements of all records": messages.encode_ack_all_user_records_processed(receiver),
        "buffer sizes": messages.encode_new_buffer_size(receiver, 1),
        "segment ids": messages.encode_segment_id(receiver, 0, 0),
        "partitions that are not there, released": writer_frames.encode_release_partition(1, bytes(56)),
        "data sets that are not there, released": writer_frames.encode_release_data_set(1, bytes(16)),
        "empty task events": messages.encode_task_event_request(b"", bytes(56), receiver),
    }.items():
        yield f"{what}, 1 MiB", frame * (SIZE // len(frame))


def _dearest(options: Options, rows: Iterator[Row]) -> Iterator[Row]:
    costs = sorted(rows, key=lambda row: -sum(row.figures[f"{kind} ms"] for kind in (*GROUPS, "other")))
    yield from costs if options.every else costs[: options.most]
    if costs:
        yield Row(f"{len(costs)} cases", {"processor ms at most": max(row.figures["processor ms"] for row in costs)})


def _section(listener: str) -> Section:
    def section(options: Options) -> Iterator[Row]:
        listeners = [f"{each}://127.0.0.1:0" for each in dict.fromkeys(("kafka", listener))]
        with Kafka(listeners=listeners) as kafka:
            host, port = kafka.broker.address(listener).rsplit(":", 1)
            if listener == "kafka":
                requests = kafka_requests(Tempting(kafka).name)
            else:
                requests = shuffle_requests() if listener == "shuffle" else http_requests(f"{host}:{port}")
            wanted = ((name, request) for name, request in requests if options.wants(name))
            work = partial(measure, address=(host, int(port)), streams=listener != "kafka")
            chosen = itertools.islice(wanted, options.count(10_000))
            yield from _dearest(options, (work(name, request=request) for name, request in chosen))

    return section


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--most", type=int, default=20, help="how many of the dearest are shown")
    parser.add_argument("--every", action="store_true", help="show all")


SECTIONS = {listener: _section(listener) for listener in ("kafka", "shuffle", "http")}
