"""A catalogue that has only ACLs, in memory, and fails as it is told."""

from collections.abc import Iterable
from typing import Any

from broker.errors import StorageError, UnknownOutcome
from broker.metadata.catalogue import AclRow


class AclTable:
    """``fault`` of the next change: "failed", or "lost" or "kept" where nobody knows which of the two."""

    def __init__(self) -> None:
        self.rows: set[AclRow] = set()
        self.fault: str | None = None
        self.changes = 0

    def load_acls(self) -> Iterable[AclRow]:
        return list(self.rows)

    def alter_acls(self, added: Iterable[AclRow], removed: Iterable[AclRow]) -> None:
        added, removed = set(added), set(removed)
        self.changes += 1
        fault, self.fault = self.fault, None
        if fault == "failed":
            raise StorageError("no space left")
        if fault != "lost":
            self.rows = self.rows - removed | added
        if fault is not None:
            raise UnknownOutcome("the disk is gone")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a table of ACLs has no {name}")
