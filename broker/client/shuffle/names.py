"""Parses the forms in which a user may give the address of a broker and the id of a result partition."""

from protocol.shuffle.ids import ResultPartitionID

Address = tuple[str, int]
PartitionLike = ResultPartitionID | bytes | str


def parse_address(address: str | Address) -> Address:
    """Return the host and port of ``host:port``, which may follow ``shuffle://`` or ``shuffle+ssl://``. Raises ValueError for
    other text."""
    if not isinstance(address, str):
        return address
    text = address.removeprefix("shuffle://").removeprefix("shuffle+ssl://").partition("?")[0]
    host, colon, port = text.rpartition(":")
    if not (colon and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]") or "localhost", int(port)


def partition_id(partition: PartitionLike) -> ResultPartitionID:
    """Return the id, given as such, as its 60 bytes, as its 120 hex digits, in Flink's text form, or as a name. Raises
    ValueError."""
    return ResultPartitionID.from_words(partition) if isinstance(partition, str) else ResultPartitionID(partition)
