"""Names of the files of a log, as Kafka makes them: an offset in 20 digits, and a suffix that says what the file holds."""

from typing import Final

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)

DELETED: Final = ".deleted"  # to be removed
CLEANED: Final = ".cleaned"  # being written by compaction
SWAP: Final = ".swap"  # written by compaction, replaces a segment


def file_name(offset: int, suffix: str) -> str:
    """``00000000000000000042.log``: with 20 digits names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name; None if the name is not that of such a file."""
    digits = name.removesuffix(suffix)
    if len(digits) != 20 or len(name) != 20 + len(suffix) or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)
