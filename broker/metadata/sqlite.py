"""The catalogue in an SQLite file, the embedded default.

``sql.py`` has the statements; ``sqlite_database.py`` opens the file, has the tables and runs the transactions. Any thread may
call any method.

Tests: tests/contract/test_catalogue.py, tests/metadata/test_sqlite.py.
"""

from broker.metadata.sql import SqlCatalogue, Transactions
from broker.metadata.sqlite_database import SqliteDatabase


class SqliteCatalogue(SqlCatalogue):
    """``Catalogue``. Raises ConfigError if the file cannot be used; see ``SqliteDatabase``."""

    def __init__(self, path: str, database: Transactions | None = None) -> None:
        super().__init__(SqliteDatabase(path) if database is None else database)
        self.path = path
