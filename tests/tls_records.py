"""Records of TLS 1.3 that no client's library would send: encrypted with the keys of a real client, from its key log.

For tests only. The suite is TLS_AES_256_GCM_SHA384, which OpenSSL prefers.
"""

import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_HANDSHAKE, _DATA = 22, 23
_LABEL = "CLIENT_TRAFFIC_SECRET_0"


def logging_keys(context: ssl.SSLContext, path: Path) -> ssl.SSLContext:
    """``context``, changed: its connections write their keys to ``path``."""
    context.keylog_filename = str(path)
    return context


class ClientKeys:
    """What a client sends, after ``sent`` records of data."""

    def __init__(self, key_log: Path, sent: int = 0) -> None:
        line = next(line for line in reversed(key_log.read_text().splitlines()) if line.startswith(_LABEL))
        self._secret = bytes.fromhex(line.split()[2])
        self._sequence = sent

    def record(self, content: bytes, kind: int = _DATA) -> bytes:
        key, iv = self._expand(b"key", 32), self._expand(b"iv", 12)
        nonce = (int.from_bytes(iv, "big") ^ self._sequence).to_bytes(12, "big")
        self._sequence += 1
        header = struct.pack(">BHH", _DATA, 0x0303, len(content) + 17)
        return header + AESGCM(key).encrypt(nonce, content + bytes([kind]), header)

    def key_update(self, *, asks: bool = False) -> bytes:
        """Further records are encrypted with the next key. ``asks``: the other side shall do the same."""
        record = self.record(struct.pack(">B3sB", 24, b"\0\0\1", asks), _HANDSHAKE)
        self._secret = self._expand(b"traffic upd", 48)
        self._sequence = 0
        return record

    def _expand(self, label: bytes, length: int) -> bytes:
        info = struct.pack(">HB", length, 6 + len(label)) + b"tls13 " + label + b"\0"
        return HKDFExpand(hashes.SHA384(), length, info).derive(self._secret)
