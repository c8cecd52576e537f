"""kcat, the command-line client, in Debian's build (librdkafka 2.0.2: the oldest client in these tests)."""

import shutil
import subprocess

from tests.compat.clients.record import CODECS, NO_LIMIT, Record

# Lengths first, so that the bytes that follow need no escaping; headers end at the line's end.
_FORMAT = r"%p %K %S %h\n%k%s"


class Kcat:
    name = "kcat"
    codecs = CODECS
    too_large = "Message size too large"

    def missing(self) -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed (Debian's package of that name)"

    def can_write(self, record: Record) -> bool:
        # Of empty input it makes no message.
        return record.key is not None or bool(record.value)

    def produce(self, servers: str, topic: str, partition: int, records: list[Record], codec: str, acks: int) -> None:
        for record in records:  # headers and "empty means no value" are for all messages of a call
            options = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-X", f"acks={acks}"]
            options += ["-X", f"message.max.bytes={NO_LIMIT}"]
            stdin = record.value or b""
            if record.key is not None:
                options += ["-K", "\\t"]
                stdin = record.key + b"\t" + stdin
            if record.value is None:
                options.append("-Z")
            for key, value in record.headers:
                options += ["-H", key if value is None else f"{key}={value.decode()}"]
            run(servers, *options, stdin=stdin)

    def consume(self, servers: str, topic: str, count: int) -> dict[int, list[Record]]:
        output = run(servers, "-C", "-t", topic, "-o", "beginning", "-e", "-X", "fetch.wait.max.ms=10", "-f", _FORMAT)
        consumed: dict[int, list[Record]] = {}
        while output:
            line, output = output.split(b"\n", 1)
            partition, key_size, value_size, headers = line.split(b" ", 3)
            key, output = _cut(output, int(key_size))
            value, output = _cut(output, int(value_size))
            consumed.setdefault(int(partition), []).append(Record(key, value, _headers(headers.decode())))
        assert count == sum(map(len, consumed.values()))
        return consumed


def run(servers: str, *options: str, stdin: bytes = b"", fails: bool = False) -> bytes:
    """kcat's output. AssertionError with what it said if it fails, or, for ``fails``, if it does not (then what it said)."""
    result = subprocess.run(
        ["kcat", "-b", servers, *options], input=stdin, capture_output=True, check=False, timeout=60
    )
    assert fails == (result.returncode != 0), result.stderr.decode()
    return result.stderr if fails else result.stdout


def _cut(data: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, data) if size < 0 else (data[:size], data[size:])


def _headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return tuple((key, None if value == "NULL" else value.encode()) for key, _, value in pairs)
