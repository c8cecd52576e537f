"""Names of the files of a log, in Kafka's form: 20 digits of an offset and a suffix that says what the file holds."""

from typing import Final

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)

DELETED: Final = ".deleted"  # waits for its deletion
CLEANED: Final = ".cleaned"  # being written by compaction
SWAP: Final = ".swap"  # written by compaction and about to replace a segment


def file_name(offset: int, suffix: str) -> str:
    """``00000000000000000042.log``: Kafka's 20 digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name; None if it is not the name of such a file."""
    digits = name.removesuffix(suffix)
    if len(digits) != 20 or len(name) != 20 + len(suffix) or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)
