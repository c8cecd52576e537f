"""Another number of nodes for a catalogue in PostgreSQL: what each node has for itself is replaced in one transaction.

Whoever changes the number owns all nodes, those that there were and those that there will be. The journals of the new division
are written to schemas beside those of the nodes (``staged``) first. ``switch`` puts them into the places of the old ones, divides
the rows of files in the object store, and says how many nodes there are. So at any moment the old number is in force, or the new
one.

Schemas of nodes that are no more stay, with their owners' rows: an epoch never comes twice. Objects that only old journals named
are condemned, and the first node deletes them.

``broker/server/resizing.py`` does the rest.

Tests: tests/durable/test_resizing.py.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import psycopg

from broker.errors import Fenced, StorageError
from broker.metadata.postgres_cluster import MAKE, SEATS
from broker.metadata.postgres_connection import Address, Connection, connect
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_feed import SECRET
from broker.metadata.postgres_layouts import MOST_NODES
from broker.metadata.postgres_owner import fenced_message

# How long a statement of the transaction may take: it divides the rows of all files.
_STATEMENT_S = 600
_LOCK_S = 10
# Whose files are to be deleted, in ``Division.places``.
NOBODY = -1
_KEY = "CASE WHEN split_part(path, '/', 1) = ANY(%s) THEN path ELSE split_part(path, '/', 1) END"
_PUT = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
# That of a partition is this one plus the epoch of its node's owner, which may be lower at the node that gets it.
_RAISE_EPOCH = (
    "INSERT INTO meta VALUES ('leader_epoch', %s) "
    "ON CONFLICT (key) DO UPDATE SET value = (meta.value::bigint + excluded.value::bigint)::text"
)


def staged(address: Address, node: int) -> Address:
    """Where the node's journal is written that is not in force yet."""
    return attrs.evolve(address, node=MOST_NODES + node)


def begin_staged(address: Address, node: int, number: int) -> None:
    """Remove what an attempt before has left. The first row will have the number after this one. Raises StorageError."""
    one = staged(address, node)
    with _connected(address) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {one.own_schema} CASCADE".encode())
        connection.execute(f"CREATE SCHEMA {one.own_schema}".encode())
        connection.execute(f"CREATE TABLE {one.own_schema}.owner (LIKE {address.schema}.owner INCLUDING ALL)".encode())
        connection.execute(
            f"INSERT INTO {one.own_schema}.owner (id, epoch, number, holder, address, lease_until) "
            "VALUES (1, 1, %s, '', '', 'epoch')".encode(),
            (number,),
        )


def file_keys(database: PostgresDatabase, services: Sequence[str]) -> list[str]:
    """What the rows of files of the database's node are divided by: the first part of the path, but the whole path in the
    directories of ``services``. Raises StorageError."""
    own = database.address.own_schema
    return [key for (key,) in database.read(f"SELECT DISTINCT {_KEY} FROM {own}.remote_files", (list(services),))]


@attrs.frozen
class Division:
    """``places``: by the node that has rows of files, and their key (``file_keys``), the node that gets them, or ``NOBODY``.
    ``secret``: the password of several nodes, if there is none yet."""

    count: int
    services: Sequence[str]
    places: Mapping[tuple[int, str], int]
    secret: str


def switch(address: Address, epochs: Sequence[int], division: Division, now_ms: int) -> None:
    """``epochs``: of the owners of all nodes that are or will be. All of them have a staged journal. Raises Fenced, StorageError;
    the latter if the outcome is unknown, too."""
    with _connected(address) as connection, connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (MAKE + zlib.crc32(address.schema.encode()),))
        schemas = [attrs.evolve(address, node=node).own_schema for node in range(len(epochs))]
        for schema, epoch in zip(schemas, epochs, strict=True):
            row = connection.execute(f"SELECT epoch FROM {schema}.owner WHERE id = 1 FOR UPDATE".encode()).fetchone()
            if row != (epoch,):
                raise Fenced(fenced_message(epoch))
        _divide(connection, schemas, division, now_ms)
        for node, schema in enumerate(schemas):
            beside = staged(address, node).own_schema
            connection.execute(f"DROP TABLE {schema}.journal".encode())
            connection.execute(f"ALTER TABLE {beside}.journal SET SCHEMA {schema}".encode())
            connection.execute(f"UPDATE {schema}.owner SET number = (SELECT number FROM {beside}.owner)".encode())
            connection.execute(f"DROP SCHEMA {beside} CASCADE".encode())
        if division.count > 1:
            connection.execute(_PUT, (SEATS, str(division.count)))
            connection.execute("INSERT INTO meta VALUES (%s, %s) ON CONFLICT DO NOTHING", (SECRET, division.secret))
        else:
            # A broker alone can be backed up, and moved to files: the password of nodes must not go along.
            connection.execute("DELETE FROM meta WHERE key IN (%s, %s)", (SEATS, SECRET))
        connection.execute(_PUT, ("nodes", str(division.count)))
        connection.execute(_RAISE_EPOCH, (str(1 + max(epochs)),))
        connection.execute("DELETE FROM nodes")


def _divide(connection: Connection, schemas: Sequence[str], division: Division, now_ms: int) -> None:
    first = schemas[0]
    connection.execute(
        'CREATE TEMP TABLE places (was int, key text COLLATE "C", node int, PRIMARY KEY (was, key)) ON COMMIT DROP'
    )
    with connection.cursor().copy("COPY places FROM STDIN") as copy:
        for (was, key), node in division.places.items():
            copy.write_row((was, key, node))
    files = " UNION ALL ".join(
        f"SELECT {node} AS was, path, object, position, size FROM {schema}.remote_files"
        for node, schema in enumerate(schemas)
    )
    connection.execute(
        f"CREATE TEMP TABLE files ON COMMIT DROP AS SELECT path, object, position, size, node FROM ({files}) AS files "
        f"LEFT JOIN places ON places.was = files.was AND key = {_KEY}".encode(),
        (list(division.services),),
    )
    for (path,) in connection.execute("SELECT path FROM files WHERE node IS NULL LIMIT 1"):
        raise StorageError(f"Files have come meanwhile, such as {path}")
    doomed = " UNION ALL ".join(f"SELECT object FROM {schema}.journal WHERE object IS NOT NULL" for schema in schemas)
    connection.execute(
        f"INSERT INTO {first}.condemned_objects SELECT object, %s FROM "
        f"({doomed} UNION SELECT object FROM files WHERE node = {NOBODY}) AS doomed ON CONFLICT DO NOTHING".encode(),
        (now_ms,),
    )
    for node, schema in enumerate(schemas):
        connection.execute(f"TRUNCATE {schema}.remote_files".encode())
        connection.execute(
            f"INSERT INTO {schema}.remote_files SELECT path, object, position, size FROM files WHERE node = %s".encode(),
            (node,),
        )
        if node:
            connection.execute(
                f"INSERT INTO {first}.condemned_objects SELECT * FROM {schema}.condemned_objects "
                "ON CONFLICT DO NOTHING".encode()
            )
            connection.execute(f"TRUNCATE {schema}.condemned_objects".encode())


@contextmanager
def _connected(address: Address) -> Iterator[Connection]:
    """Raises StorageError."""
    try:
        with connect(address, "broker-resize") as connection:
            connection.answer_s = _STATEMENT_S + 5.0
            connection.execute(f"SET statement_timeout = '{_STATEMENT_S}s'; SET lock_timeout = '{_LOCK_S}s'".encode())
            yield connection
    except psycopg.Error as error:
        raise StorageError(f"{address.place()}: {address.without_secrets(error)}") from error
