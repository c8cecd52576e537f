"""How a user names a broker and a result partition, and what the client makes of it."""

from protocol.shuffle.ids import ResultPartitionID

Address = tuple[str, int]
PartitionLike = ResultPartitionID | bytes | str


def parse_address(address: str | Address) -> Address:
    """A host and a port from ``host:port``, with or without ``shuffle://``. Raises ValueError for other text."""
    if not isinstance(address, str):
        return address
    text = address.removeprefix("shuffle://").partition("?")[0]
    host, colon, port = text.rpartition(":")
    if not (colon and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]") or "localhost", int(port)


def partition_id(partition: PartitionLike) -> ResultPartitionID:
    """The id from an id, its 60 bytes, its 120 hex digits or Flink's text form. Raises ValueError."""
    if isinstance(partition, str):
        return ResultPartitionID.from_text(partition)
    return ResultPartitionID(partition)
