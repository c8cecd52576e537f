"""A process that has no descriptor left, for as long as a ``with`` block."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def none_left() -> Iterator[None]:
    """Every further ``open`` fails with EMFILE until one that is open now is closed."""
    lowest = os.open("/dev/null", os.O_RDONLY)  # the next number that is free
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
