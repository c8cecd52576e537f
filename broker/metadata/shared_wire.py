"""The messages between a process that has the catalogue's file and processes that use it: JSON, with bytes in base64.

| from the user | means |
|---|---|
| ``["read", sql, values]`` | a query of its own |
| ``["run", statements, then]`` | statements of a transaction, which begins with the first. ``then``: "go on", "commit", "undo" |
| ``["watch", node, about, tables]`` | tell this channel of changes of these tables, and the others that this node is there |
| ``["applied", version]`` | (from a watcher) everything up to this version is in force here |
| ``["topics", version]`` | which topics have changed since: ``[version, names]``, with null for names that it does not know |
| ``["secret"]`` | the password by which nodes log in with each other |
| ``["settle", seconds, node]`` | answer when all watchers but this node's have applied what is committed by now |
| ``["copy", path]`` | write what is committed now to this path |
| ``["backup", id, directory, path, count]``, ``["pin", id, node]`` | see ``shared_moment.py`` |

A statement is ``[sql, values, kind]``: ``kind`` is "one", "many" (``values`` is a list of them) or "rows" (its rows are wanted).
Answers are ``["done", value]`` or ``["failed", kind, message]``. A watcher gets ``["nodes", {node: about}]`` and
``["changed", version, tables]`` (null: look at all of them), and ``["backup", id, directory]`` when one is made.

Tests: tests/metadata/test_shared_database.py.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from broker.errors import StorageError, UnknownOutcome

_BYTES = "base64"
_CHANGED = re.compile(r"^\s*(?:INSERT\s+INTO|DELETE\s+FROM|UPDATE)\s+(\w+)", re.IGNORECASE)
# Names of changed topics are kept for so many changes. Who has missed more reads all topics again.
CHANGES_KEPT = 1000
_TOPIC = "topics/"
ERRORS = {"storage": StorageError, "unknown": UnknownOutcome}


@lru_cache(512)
def changed_table(sql: str) -> str | None:
    """The table that the statement changes."""
    match = _CHANGED.match(sql)
    return None if match is None else match[1].lower()


def changed_names(table: str, rows: Iterable[Sequence[Any]]) -> set[str]:
    """What nodes are told of a change of this table with these values. Documents of different kinds have nothing to do with
    each other. Of topics it also has the names (``topic_of``): there may be many, and one changes at a time."""
    if table == "documents":
        return {f"{table}/{row[0]}" for row in rows}
    if table == "topics":  # a row that is removed by its id is put again under another name
        return {table, *(f"{_TOPIC}{row[0]}" for row in rows if isinstance(row[0], str))}
    return {table}


def topic_of(name: str) -> str | None:
    """The topic that has changed, if this is one of ``changed_names`` that says so."""
    return name.removeprefix(_TOPIC) if name.startswith(_TOPIC) else None


def encode(message: list[Any]) -> bytes:
    return json.dumps(message, default=_plain, separators=(",", ":")).encode()


def decode(message: bytes) -> list[Any]:
    """Raises ValueError."""
    decoded = json.loads(message, object_hook=_bytes)
    if not isinstance(decoded, list) or not decoded:
        raise ValueError("not a message")
    return decoded


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return {_BYTES: base64.b64encode(value).decode()}
    raise TypeError(f"no message can have a {type(value).__name__}")


def _bytes(value: dict[str, Any]) -> object:
    return base64.b64decode(value[_BYTES]) if value.keys() == {_BYTES} else value
