"""Blocking functions called from coroutines."""

import asyncio
import threading

import pytest

from broker.runtime.forks import in_thread


def test_the_loop_goes_on_while_the_function_blocks() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        go = threading.Event()

        def blocking() -> int:
            assert go.wait(30)
            return 7

        call = asyncio.ensure_future(in_thread(blocking))
        await asyncio.sleep(0)
        said.append("meanwhile")
        go.set()
        said.append(str(await call))
        return said

    assert ["meanwhile", "7"] == asyncio.run(main())


def test_errors_come_back() -> None:
    def wrong() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(in_thread(wrong))


def test_a_cancelled_call_ends_and_is_undone() -> None:
    done: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go.wait(30)
        done.append("done")

    async def main() -> None:
        call = asyncio.ensure_future(in_thread(slow, lambda: done.append("undone")))
        await asyncio.to_thread(begun.wait, 30)
        call.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert ["done", "undone"] == done
