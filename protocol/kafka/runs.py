"""The two steps of a usual Produce request that look at its bytes: following a run of requests (``follow_python`` in
``messages/produce.py``), and checking their batches (``usual_python`` in ``broker/storage/log/append.py``).

They are half of what a small request costs, so there is each of them in C as well (``_runs.c``), which is taken where it was
compiled (``packaging/accelerator.py``). Both give the same for all bytes, and tests/protocol/kafka/test_runs.py compares them.
Whatever is not usual is left to code that is there once, in Python. Here is what both have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.kafka.records.batch import HEADER_SIZE
from protocol.kafka.records.record_scan import check_shape

# The fields of ``HEADER``.
Header = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
# The position in the write and the header of each batch; how many bytes they have; the largest of their timestamps; and whether
# a producer has numbered any.
Taken = tuple[list[tuple[int, Header]], int, int, bool]
# The templates, correlation ids and records of requests; where they end; and whether all have the same template.
Followed = tuple[list[Any], list[int], list[memoryview], int, bool]


class Layout(NamedTuple):
    """Of requests with equally long middles. ``unpack`` gives, of the frame at a position: its length, its kind, the correlation
    id, the middle, and the length of the records, which is a number or the first three bytes of one. That is ``size`` bytes."""

    unpack: Callable[[memoryview, int], tuple[Any, ...]]
    size: int


class Known(NamedTuple):
    """What ``follow`` needs of a template. Requests in a run have the same ``kind`` and the same ``settings``."""

    template: Any
    kind: int  # API key and version
    settings: tuple[int, int]  # acks and timeout


def _is_compressed(records: memoryview, codec: int, count: int) -> bool:
    """Whether the records of a batch, which begin after its header, are as ``check_shape`` wants them."""
    try:
        check_shape(records[HEADER_SIZE:], codec, count)
    except ProtocolError:
        return False
    return True


def accelerated(module: Any) -> tuple[Callable[..., Followed | None], Callable[..., Taken]]:
    """``follow`` and ``usual`` of the compiled module. It leaves checksums and compressed records to Python."""
    return module.follow, partial(module.usual, crc32c, _is_compressed)


# None: not compiled.
follow_in_c: Callable[..., Followed | None] | None = None
usual_in_c: Callable[..., Taken] | None = None
try:
    from protocol.kafka import _runs  # type: ignore[attr-defined]
except ImportError:
    pass
else:
    follow_in_c, usual_in_c = accelerated(_runs)
