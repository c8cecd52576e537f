"""What every client writes and reads in test_interchange: records of each shape, and what a client has to be able to do."""

from typing import NamedTuple, Protocol


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


# One record of each shape that Kafka knows. Text only, because kcat reads lines.
RECORDS = (
    Record(b"key", b"value"),
    Record(None, b"no key"),
    Record(b"", b"an empty key"),
    Record(b"an empty value", b""),
    Record(b"no value", None),
    Record(None, b""),
    Record(None, None),
    Record(b"headers", b"value", (("one", b"1"), ("empty", b""), ("\u00fcber", "\u00fcber".encode()))),
    Record(b"repeated header", b"value", (("same", b"1"), ("same", b"2"))),
    Record(b"header without value", b"value", (("null", None),)),
    Record(b"large", b"sixteen letters, " * 4096),
)
# Of the n-th record in ms; well before now, so that a client's or the broker's own clock can't be taken for it.
TIMESTAMP = 1_700_000_000_000


class Client(Protocol):
    """A client in the simplest use it can be put to. Both methods raise when it says that something went wrong."""

    name: str
    codecs: tuple[str, ...]
    # What its error says when the broker finds a message too large.
    too_large: str

    def missing(self) -> str | None:
        """Why it can't be had here; None: it can."""

    def can_write(self, record: Record) -> bool:
        """Whether its interface lets one write such a record."""

    def produce(self, servers: str, topic: str, partition: int, records: list[Record], codec: str, acks: int) -> None:
        """Write the records in this order, in as few batches as it likes; returns when all are acknowledged.

        Of its own it sets no limit to a record's size below 100 MB.
        """

    def consume(self, servers: str, topic: str, count: int) -> dict[int, list[Record]]:
        """Read a topic from its beginning until there are ``count`` records, by partition."""


# A client's own limit to a message, so that it is the broker's that counts.
NO_LIMIT = 100_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
