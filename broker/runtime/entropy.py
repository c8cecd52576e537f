"""Randomness and identifiers, so that a simulation can draw them from its seed."""

import os
import uuid
from typing import Protocol


class Entropy(Protocol):
    def bytes(self, n: int) -> bytes:
        """``n`` random bytes."""

    def uuid(self) -> uuid.UUID:
        """A random (version 4) UUID."""


class SystemEntropy:
    """The kernel's generator."""

    @staticmethod
    def bytes(n: int) -> bytes:
        return os.urandom(n)

    @staticmethod
    def uuid() -> uuid.UUID:
        return uuid.uuid4()
