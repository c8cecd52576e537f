"""Reads a file or a page of the web by its URL, on a thread of its own, so that nobody waits for a server that does not answer.

Redirects are not followed: the fetched file decides who may log in, so only the operator chooses its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

# Modules of the web are imported where they are needed: that takes 0.1 s, which would delay every start.
if TYPE_CHECKING:
    from http.client import HTTPConnection
    from urllib.parse import SplitResult

# What came, or why nothing came.
Done = Callable[["bytes | OSError"], None]
SCHEMES = ("file", "http", "https")


class Fetcher(Protocol):
    def start(self, url: str, timeout: float, max_bytes: int, done: Done) -> None:
        """Call ``done`` once, from any thread, within about ``timeout`` s (the time of the system to look up a name is added).

        ``url``: see ``SCHEMES``. More than ``max_bytes`` are an error."""


class SystemFetcher:
    """The file system and the network."""

    @staticmethod
    def start(url: str, timeout: float, max_bytes: int, done: Done) -> None:
        def run() -> None:
            try:
                result: bytes | OSError = read_url(url, timeout, max_bytes)
            except OSError as error:
                result = error
            except ValueError as error:  # such as a name that no host can have
                result = OSError(str(error))
            done(result)

        # Daemon: a process may end while a server does not answer.
        threading.Thread(target=run, name="fetcher", daemon=True).start()


def host_of(url: str) -> str | None:
    """The host from which it would be fetched; None for a file. Raises ValueError for others, and for a URL with a user."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or (parts.scheme == "file") == bool(parts.netloc):
        raise ValueError("it is no URL of a file or of the web")
    if parts.username is not None or parts.port == 0 or (parts.netloc and not parts.hostname):
        raise ValueError("it has a user, or no host, or no port")
    return parts.hostname


def read_url(url: str, timeout: float, max_bytes: int) -> bytes:
    """The content of the URL. Waits.

    Raises OSError, or ValueError for a URL that cannot be used. The error shows nothing of the content."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(unquote(parts.path), "rb") as file:
            content = file.read(max_bytes + 1)
    else:
        content = _get(parts, timeout, max_bytes)
    if len(content) > max_bytes:
        raise OSError(f"it is longer than {max_bytes} bytes")
    return content


def _get(parts: SplitResult, timeout: float, max_bytes: int) -> bytes:
    import http.client

    connection = _connection(parts, timeout)
    connection.connect()
    sock = connection.sock  # the connection forgets it before the answer is read
    over = threading.Event()

    def hang_up() -> None:
        over.set()
        try:
            sock.shutdown(2)  # both directions: whoever reads gets the end
        except OSError:
            pass  # it is closed already

    # A server may send one byte at a time, and each resets the socket's own time-out.
    watchdog = threading.Timer(timeout, hang_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
        with connection.getresponse() as response:
            if response.status != http.client.OK:
                raise OSError(f"the server answers with status {response.status}")
            content = response.read(max_bytes + 1)
            if over.is_set():
                raise TimeoutError(f"the answer was not there after {timeout} s")
            if len(content) <= max_bytes and response.length:
                raise OSError("the answer ends too early")
            return content
    except http.client.HTTPException as error:
        raise OSError(f"the server's answer is not HTTP ({type(error).__name__})") from None
    finally:
        watchdog.cancel()
        connection.close()
        sock.close()


def _connection(parts: SplitResult, timeout: float) -> HTTPConnection:
    import http.client
    import ssl

    host = parts.hostname
    if not host:
        raise OSError("the URL names no host")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, parts.port, timeout=timeout)
