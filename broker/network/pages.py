"""The parameters that all lists of the HTTP API have: ``limit``, ``after``, and others that are numbers. Pure.

A list is sorted by name and given in pages: ``next`` is the name to pass as ``after`` for the page that follows; null at the end.
``filter`` leaves only the names that contain it, in upper or lower case.

Tests: tests/network/test_pages.py.
"""

import heapq
from collections.abc import Iterable
from typing import Final

from broker.network.routes import BAD_REQUEST, Call, HttpError

LIMIT: Final = 100
LIMIT_MAX: Final = 1000
_DIGITS_MAX = 19


def number_of(
    call: Call, name: str, default: int | None = None, *, least: int = 0, most: int = 2**63 - 1
) -> int | None:
    """A whole number of the query. Raises HttpError."""
    text = call.query.get(name, "")
    if not text:
        return default
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX and least <= int(text) <= most:
        return int(text)
    raise HttpError(BAD_REQUEST, f"The parameter {name} has to be a whole number from {least} to {most}.")


def limit_of(call: Call, default: int = LIMIT, most: int = LIMIT_MAX) -> int:
    """How many items the page may have. Raises HttpError."""
    limit = number_of(call, "limit", default, least=1, most=most)
    assert limit is not None
    return limit


def page_of(call: Call, names: Iterable[str]) -> tuple[list[str], str | None]:
    """The names of the page, and what ``next`` says. Raises HttpError."""
    after, part, limit = call.query.get("after", ""), call.query.get("filter", "").lower(), limit_of(call)
    wanted = (name for name in call.work.each(names) if name > after and part in name.lower())
    page = heapq.nsmallest(limit + 1, wanted)
    return (page[:limit], page[limit - 1]) if len(page) > limit else (page, None)
