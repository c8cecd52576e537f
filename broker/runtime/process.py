"""Ends the process without depending on threads or locks that may be stuck."""

import _thread
import os
import select
import time


class LastResort:
    """Ends the process after some seconds, whatever its threads are doing, unless it is called off.

    May be made in a signal handler: it takes no lock, which ``threading.Thread`` does.
    """

    def __init__(self, seconds: float, status: int, why: str) -> None:
        """``why`` is written to standard error."""
        self._called_off = False
        self._end = (seconds, status, why)
        _thread.start_new_thread(self._wait, ())

    def call_off(self) -> None:
        self._called_off = True

    def _wait(self) -> None:
        seconds, status, why = self._end
        time.sleep(seconds)
        if not self._called_off:
            exit_now(status, why)


def exit_now(status: int, why: str = "") -> None:
    """End the process without the interpreter's shutdown, which may wait for other threads.

    ``why`` is written to standard error unless that would block: it may be a pipe that is full or has no reader.
    """
    try:
        if why:
            writable = select.poll()
            writable.register(2, select.POLLOUT)
            if writable.poll(0):
                os.write(2, f"{why}\n".encode())
    except (OSError, ValueError):
        pass
    finally:
        os._exit(status)
