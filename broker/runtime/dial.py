"""One question to a server: connect, send a frame, receive a frame. Blocking: for the command line, not for a broker."""

import socket


def ask(host: str, port: int, frame: bytes, timeout: float, most: int = 1024 * 1024) -> bytes:
    """Send ``frame`` (its 4-byte length included) and return the answer without its length.

    ``timeout`` in s for each step. Raises OSError: refused, timed out, closed early, or an answer of more than ``most`` bytes.
    """
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(frame)
        size = int.from_bytes(_receive(connection, 4), "big")
        if size > most:
            raise OSError(f"an answer of {size} bytes, which is not one of this protocol")
        return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise OSError("the connection was closed before the whole answer had come")
        received += piece
    return bytes(received)
