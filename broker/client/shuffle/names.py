"""Parses the forms in which a user may give the address of a broker and the id of a result partition."""

import hashlib
import re

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


# Ids are long strings of hex digits, alone or with # and @ between them. Text that looks like part of an id is not a
# name, so that an id with a missing digit does not silently become another partition.
_NAME = re.compile(r"(?![0-9A-Fa-f]{24,}\Z)[A-Za-z0-9._/-]{1,200}", re.ASCII)


def partition_id(partition: PartitionLike) -> ResultPartitionID:
    """Return the id, given as such, as its 60 bytes, as its 120 hex digits, in Flink's text form, or as a name. Raises
    ValueError."""
    if isinstance(partition, str):
        name = partition.strip()
        return id_of_name(name) if _NAME.fullmatch(name) else _from_text(partition)
    return ResultPartitionID(partition)


def id_of_name(name: str) -> ResultPartitionID:
    """The partition of a plain name, always and everywhere the same: number 0, subtask 0 and attempt 0 of a data set
    and a graph with the halves of the name's SHA-256 as ids."""
    digest = hashlib.sha256(name.encode()).digest()
    return ResultPartitionID.of(digest[:16], graph=digest[16:])


def _from_text(text: str) -> ResultPartitionID:
    try:
        return ResultPartitionID.from_text(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no partition: write a name of letters, digits and ._-/ (not of hex digits alone), the 120 hex digits of"
            " an id, or Flink's <data set>#<n>@<graph>_<vertex>_<subtask>_<attempt>"
        ) from None
