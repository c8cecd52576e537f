"""The rows of groups in the catalogue: documents of the kind ``group-rows`` with the key group id, NUL, name of the row.

A group id may contain any character. In a key its NULs are escaped, so that no group's rows can be taken for another's.
``SINCE`` is the registry's own row: since when the group is empty, from where the age of its offsets counts. Pure, but for the
changes of the catalogue.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

import attrs

from broker.errors import StorageError
from broker.kafka.groups.group import GroupType
from broker.metadata.catalogue import Catalogue

KIND = "group-rows"
# The row of the group itself.
GROUP = ""
SINCE = "empty-since-ms"

Rows = Mapping[str, bytes]


def prefix_of(group_id: str) -> str:
    """What the keys of all rows of a group begin with, and no others."""
    return group_id.replace("%", "%25").replace("\0", "%00") + "\0"


def by_group(documents: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Each group's id, and its rows by name."""
    groups: dict[str, dict[str, bytes]] = {}
    for key, body in documents:
        escaped, _, row = key.partition("\0")
        groups.setdefault(escaped, {})[row] = body
    for escaped, rows in groups.items():
        yield escaped.replace("%00", "\0").replace("%25", "%"), rows


def type_of(group_id: str, rows: Rows) -> GroupType:
    """The kind of group that these rows are of. Raises StorageError if they do not say, or name a kind that is not known."""
    try:
        return GroupType(json.loads(rows[GROUP])["type"])
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"the rows of group {group_id!r} do not name a kind of group: {error!r}") from error


def take_since_ms(rows: dict[str, bytes]) -> int | None:
    """Remove the registry's row. Returns since when the group is empty; None if that is not known."""
    try:
        return int(rows.pop(SINCE))
    except (KeyError, ValueError):
        return None


def since_row(since_ms: int) -> bytes | None:
    """The registry's row; ``since_ms`` is 0 for a group that has members."""
    return str(since_ms).encode() if since_ms else None


@attrs.frozen
class Save:
    """A change of the catalogue: rows of one group, after everything of the kind that it had before (``replaced``) is deleted."""

    group_id: str
    put: Mapping[str, bytes | None]
    replaced: GroupType | None = None

    def __call__(self, catalogue: Catalogue) -> None:
        if self.replaced is None:
            self._put(catalogue)
        else:
            catalogue.together([Delete(self.group_id, self.replaced), self._put])

    def _put(self, catalogue: Catalogue) -> None:
        prefix = prefix_of(self.group_id)
        catalogue.alter_documents([(KIND, prefix + row, body) for row, body in self.put.items()])


@attrs.frozen
class Delete:
    """A change of the catalogue: a group's state, as its kind stores it."""

    group_id: str
    type: GroupType

    def __call__(self, catalogue: Catalogue) -> None:
        if self.type is GroupType.CLASSIC:
            catalogue.delete_group(self.group_id)
        else:
            catalogue.delete_documents(KIND, prefix_of(self.group_id))
