"""What is read from a URL, and servers that answer slowly, wrongly or not at all."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.runtime.web import SystemFetcher, read_url


@contextmanager
def server(*answers: bytes, then_hang: bool = False, drip: str = "") -> Iterator[str]:
    """Sends one of the answers on each connection, and then closes it or keeps it."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []
    over = threading.Event()

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            try:
                connection.recv(65536)
                if drip:
                    head, separator, answer = answer.partition(b"\r\n\r\n")
                    if drip == "body":
                        connection.sendall(head + separator)
                    else:
                        answer = head + separator + answer
                    for byte in answer:
                        connection.sendall(bytes([byte]))
                        if over.wait(0.05):
                            return
                else:
                    connection.sendall(answer)
                if not then_hang:
                    connection.close()
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/keys?x=y"
    over.set()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in kept:
        connection.close()
    thread.join(30)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a b.json").write_bytes(b"hello")
    assert b"hello" == read_url(f"file://{tmp_path}/a%20b.json", 1, 5)
    with pytest.raises(OSError, match="longer than 4 bytes"):
        read_url(f"file://{tmp_path}/a%20b.json", 1, 4)
    with pytest.raises(FileNotFoundError):
        read_url(f"file://{tmp_path}/nothing.json", 1, 5)


def test_a_page_is_read() -> None:
    with server(OK) as url:
        assert b"hello" == read_url(url, 30, 5)
    with server(OK) as url, pytest.raises(OSError, match="longer than 4 bytes"):
        read_url(url, 30, 4)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "status 404"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "status 302"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "not HTTP"),
        (b"", "not HTTP|closed|reset"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", "ends too early"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n", "not HTTP"),
    ],
)
def test_an_answer_of_no_use_is_an_error(answer: bytes, message: str) -> None:
    with server(answer) as url, pytest.raises(OSError, match=message):
        read_url(url, 30, 100)


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    with pytest.raises(OSError):
        read_url(url, 30, 100)
    with pytest.raises(OSError, match="no host"):
        read_url("http:///x", 30, 100)


def test_a_server_that_hangs_or_drips_is_left() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with server(head, then_hang=True) as url, pytest.raises(OSError):
        read_url(url, 0.2, 2000)
    for part in ("head", "body"):
        with server(head + b"x" * 1000, drip=part) as url, pytest.raises(OSError):
            read_url(url, 0.5, 2000)


def test_it_is_fetched_on_another_thread(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    came = threading.Event()
    found: list[object] = []

    def done(what: bytes | OSError) -> None:
        found.extend((what, threading.get_ident()))
        came.set()

    SystemFetcher.start(f"file://{tmp_path}/x", 1, 100, done)
    assert came.wait(30)
    assert b"hello" == found[0]
    assert threading.get_ident() != found[1]
    came.clear()
    found.clear()
    SystemFetcher.start("http://" + "a" * 100 + ".example/", 1, 100, done)
    assert came.wait(30)
    assert isinstance(found[0], OSError)
    came.clear()
    found.clear()
    SystemFetcher.start(f"file://{tmp_path}/nothing", 1, 100, done)
    assert came.wait(30)
    assert isinstance(found[0], FileNotFoundError)
