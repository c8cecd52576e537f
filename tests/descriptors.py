"""A process that has no descriptor left, for as long as a ``with`` block."""

import os
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any


@contextmanager
def none_left() -> Iterator[None]:
    """Every further ``open`` fails with EMFILE until one that is open now is closed.

    Only for ``in_own_process``: what earlier tests left behind (garbage, threads of clients) would close descriptors here.
    """
    lowest = os.open("/dev/null", os.O_RDONLY)  # the next number that is free
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def in_own_process(check: Callable[..., None], *args: Any) -> None:
    """Call a module's function in a new process, and raise here what it raises there."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(check, *args).result()
