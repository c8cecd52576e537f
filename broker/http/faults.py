"""Why a request cannot be read.

Tests: tests/faults/test_http.py.
"""

from typing import Final

import attrs

TOO_LARGE: Final = 413
HEAD_TOO_LARGE: Final = 431
NOT_IMPLEMENTED: Final = 501
VERSION_NOT_SUPPORTED: Final = 505


@attrs.frozen
class Fault:
    status: int
    reason: str


class Unreadable(Exception):
    """Answered with its fault; then the connection is closed, because where the next request begins is not known."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.fault = Fault(status, reason)
