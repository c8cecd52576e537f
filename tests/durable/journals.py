"""Journals in PostgreSQL, of owners that take over from each other."""

from broker.metadata.journal import Journal
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_journal import PostgresJournal
from broker.metadata.postgres_owner import OwnerSession

LEASE_S = 10.0


class PostgresJournals:
    """``Journals``. Each owner takes the state over as from one that was killed: its lock is free. The last two can be used."""

    def __init__(self, url: str, schema: str) -> None:
        self.address = Address(url, schema)
        self._opened: list[tuple[PostgresDatabase, PostgresJournal]] = []

    def take_over(self) -> Journal:
        return self.next_owner()[1]

    def next_owner(self, append_s: float = 10.0) -> tuple[PostgresDatabase, PostgresJournal]:
        session = OwnerSession(self.address, 3.0)
        assert session.lock(5.0)
        taken = session.take("test", "nowhere", LEASE_S)
        session.close()
        database = PostgresDatabase(self.address)
        database.epoch = taken.epoch
        journal = PostgresJournal(database, lease_s=LEASE_S, append_s=append_s)
        self._opened.append((database, journal))
        self._close(2)
        return database, journal

    def close(self) -> None:
        self._close(0)

    def _close(self, keep: int) -> None:
        while len(self._opened) > keep:
            database, journal = self._opened.pop(0)
            journal.close()
            database.close()
