"""Tells systemd how the broker is doing, by the protocol of sd_notify(3): datagrams to the socket that NOTIFY_SOCKET names.

Without that variable, which only a unit with ``Type=notify`` has, nothing happens. A message that cannot be sent is dropped: what
the broker does must not depend on who supervises it. Any thread.
"""

import os
import socket

# A full or stuck socket must not hold the broker up.
_SEND_TIMEOUT_S = 1.0


class ServiceManager:
    """The one that has started this process, if it wants to be told."""

    def __init__(self) -> None:
        # Taken out of the environment, so that programs started from here do not speak for the broker.
        self._path = os.environ.pop("NOTIFY_SOCKET", "")

    def recovering(self) -> None:
        self._send("STATUS=Opening the data directory")

    def ready(self, listeners: str) -> None:
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=Serving {listeners}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=Finishing requests and writing to disk")

    def _send(self, message: str) -> None:
        if not self._path.startswith("/"):  # names without a file are not for units
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(_SEND_TIMEOUT_S)
                sending.sendto(message.encode(), self._path)
        except OSError:
            pass
