"""Emptying a schema that an interrupted copy has left: tables and owner stay, so the epoch goes on to count. What others have
there stays as it is.

Tests: tests/durable/test_migration.py.
"""

import re

from psycopg import sql

from broker.metadata.copying import UNFINISHED
from broker.metadata.postgres_connection import Cursor
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_layouts import LAYOUTS

_EMPTIED = sorted({"journal", *re.findall(r"CREATE TABLE (\w+)", "".join(LAYOUTS))} - {"writers", "documents"})


def clear(database: PostgresDatabase) -> list[str]:
    """Remove catalogue and journal, but not the document that says that a copy is unfinished. Numbers of rows go on where they
    were. Returns the keys of the objects of the journal's rows. Raises StorageError."""
    objects = [key for (key,) in database.read("SELECT object FROM journal WHERE object IS NOT NULL")]

    def change(cursor: Cursor) -> None:
        cursor.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(map(sql.Identifier, _EMPTIED))))
        cursor.execute("INSERT INTO producer_ids VALUES (0)")
        cursor.execute("DELETE FROM documents WHERE kind <> %s", (UNFINISHED,))

    database.write(change)
    return objects
