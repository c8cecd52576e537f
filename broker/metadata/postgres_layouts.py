"""The tables of the catalogue in PostgreSQL, and how they are made and upgraded.

All of them are in one schema of the database, ``broker`` unless it is told otherwise: so several brokers can share a database,
each with a schema of its own. ``schema_version`` has the number of the layout. A schema with an older layout is upgraded by the
scripts that it lacks, in one transaction; a newer one is refused.

Of several nodes that share the catalogue, each but the first has a schema of its own, too, with the tables of what is that node's
alone: its files in the object store here, its owner's row and its journal elsewhere. A later layout that changes one of
``_OF_A_NODE`` changes it in those schemas, too.

The tables are SQLite's (``sqlite_database.py``), column by column in the same order. Texts sort by their code points, as they
do there.

Tests: tests/metadata/test_postgres_database.py.
"""

import zlib

from broker.errors import ConfigError
from broker.metadata.postgres_connection import Address, Connection

# 1: the catalogue. `writers` has the number of each session's last committed transaction: `postgres_database.py` says why.
# Its rows, and those of `producer_ids`, are updated all the time: with room in their page, no vacuum is needed for that.
_CATALOGUE = """
CREATE TABLE writers (
    writer bigint PRIMARY KEY, number bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
CREATE TABLE topics (
    name text COLLATE "C" PRIMARY KEY, topic_id bytea NOT NULL UNIQUE, partitions bigint NOT NULL, configs text NOT NULL
);
CREATE TABLE deleted_topics (topic_id bytea PRIMARY KEY);
CREATE TABLE broker_configs (
    entity text COLLATE "C", name text COLLATE "C", value text NOT NULL, PRIMARY KEY (entity, name)
);
CREATE TABLE offsets (
    group_id text COLLATE "C", topic text COLLATE "C", partition bigint, committed bigint NOT NULL,
    leader_epoch bigint NOT NULL, metadata text, commit_ms bigint NOT NULL, expire_ms bigint NOT NULL DEFAULT -1,
    PRIMARY KEY (group_id, topic, partition)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX offsets_by_topic ON offsets (topic);
CREATE TABLE groups (group_id text COLLATE "C" PRIMARY KEY, blob bytea NOT NULL) WITH (fillfactor = 70);
CREATE TABLE producer_ids (next bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO producer_ids VALUES (0);
CREATE TABLE meta (key text COLLATE "C" PRIMARY KEY, value text NOT NULL);
CREATE TABLE transactions (
    transactional_id text COLLATE "C" PRIMARY KEY, producer_id bigint NOT NULL, epoch bigint NOT NULL,
    last_epoch bigint NOT NULL, timeout_ms bigint NOT NULL, phase text NOT NULL, partitions text NOT NULL,
    groups text NOT NULL, started_ms bigint NOT NULL, updated_ms bigint NOT NULL, last_producer_id bigint NOT NULL,
    next_producer_id bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE TABLE transaction_additions (
    transactional_id text COLLATE "C", name text COLLATE "C", partition bigint,
    PRIMARY KEY (transactional_id, name, partition)
);
CREATE TABLE pending_offsets (
    transactional_id text COLLATE "C", group_id text COLLATE "C", topic text COLLATE "C", partition bigint,
    committed bigint NOT NULL, leader_epoch bigint NOT NULL, metadata text, commit_ms bigint NOT NULL,
    PRIMARY KEY (transactional_id, group_id, topic, partition)
);
CREATE TABLE acls (
    resource_type bigint, resource_name text COLLATE "C", pattern_type bigint, principal text COLLATE "C",
    host text COLLATE "C", operation bigint, permission bigint,
    PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)
);
CREATE TABLE credentials (
    "user" text COLLATE "C", mechanism text COLLATE "C", salt bytea NOT NULL, stored_key bytea NOT NULL,
    server_key bytea NOT NULL, iterations bigint NOT NULL, PRIMARY KEY ("user", mechanism)
);
CREATE TABLE quotas (
    entity text COLLATE "C", key text COLLATE "C", value double precision NOT NULL, PRIMARY KEY (entity, key)
);
CREATE TABLE cursors (
    topic_id bytea, partition bigint, subscription text COLLATE "C", state bytea NOT NULL,
    PRIMARY KEY (topic_id, partition, subscription)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE TABLE documents (
    kind text COLLATE "C", key text COLLATE "C", body bytea NOT NULL, PRIMARY KEY (kind, key)
) WITH (fillfactor = 70);
CREATE TABLE remote_files (
    path text COLLATE "C" PRIMARY KEY, object text COLLATE "C" NOT NULL, position bigint NOT NULL, size bigint NOT NULL
);
CREATE INDEX remote_files_by_object ON remote_files (object);
CREATE TABLE condemned_objects (object text COLLATE "C" PRIMARY KEY, since_ms bigint NOT NULL);
"""

# 2: several nodes (``postgres_feed.py``). SQLite has no such tables: there, the process that has the file knows all this.
_NODES = """
CREATE TABLE feed (name text COLLATE "C" PRIMARY KEY, version bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE nodes (
    node int PRIMARY KEY, epoch bigint NOT NULL, about text NOT NULL, applied bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE machines (
    machine text COLLATE "C" PRIMARY KEY, nodes int NOT NULL, version text NOT NULL, seen timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE machine_numbers (address text COLLATE "C" PRIMARY KEY, number int NOT NULL UNIQUE, machine text NOT NULL);
"""

# 3: how many nodes a machine should have, and whether an administrator wants it to have none.
_SHARES = """
ALTER TABLE machines ADD COLUMN weight double precision NOT NULL DEFAULT 1, ADD COLUMN drained boolean NOT NULL DEFAULT false;
"""

LAYOUTS = (_CATALOGUE, _NODES, _SHARES)
# Increases with each change of the tables that an older broker would misread.
LAYOUT_VERSION = len(LAYOUTS)


def migrate(address: Address, connection: Connection) -> None:
    """Make the schema and its tables, or upgrade them. Brokers that start together wait for each other. Raises ConfigError or
    psycopg.Error."""
    schema = address.schema
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK + zlib.crc32(schema.encode()),))
        connection.execute("SELECT set_config('search_path', %s, true)", (schema,))
        if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchall():
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version bigint NOT NULL)")
        rows = connection.execute("SELECT version FROM schema_version").fetchall()
        version = rows[0][0] if rows else 0
        if version > LAYOUT_VERSION:
            raise ConfigError(
                f"The catalogue in {address.place()}, schema {schema}, has layout {version} and this broker knows "
                f"{LAYOUT_VERSION}: start the newer broker."
            )
        if version < LAYOUT_VERSION:
            connection.execute("".join(LAYOUTS[version:]).encode())
            connection.execute("DELETE FROM schema_version")
            connection.execute("INSERT INTO schema_version VALUES (%s)", (LAYOUT_VERSION,))
        # Of sessions that ended long ago, whose outcomes nobody asks for any longer.
        connection.execute("DELETE FROM writers WHERE written_at < clock_timestamp() - interval '1 day'")
        if address.node:
            _make_own(connection, schema, address.own_schema)


def _make_own(connection: Connection, shared: str, own: str) -> None:
    if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (own,)).fetchall():
        connection.execute(f"CREATE SCHEMA {own}".encode())
    for table in _OF_A_NODE:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {own}.{table} (LIKE {shared}.{table} INCLUDING ALL)".encode())


MOST_NODES = 64
# What each node has for itself.
_OF_A_NODE = ("remote_files", "condemned_objects")
# Plus a checksum of the schema's name: the number of the advisory lock under which the tables are made.
_LOCK = 0x6C61796F_00000000
