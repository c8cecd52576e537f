"""Calls from coroutines to functions that block. The only module that knows asyncio, whose import takes 50 ms."""

import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """Call ``function`` on a thread of asyncio's pool. If the task is cancelled meanwhile, the call still goes on to its end, and
    then ``undo`` is called, before the cancellation goes on."""
    import asyncio

    call = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await call
            if undo is not None:
                await asyncio.to_thread(undo)
        raise
