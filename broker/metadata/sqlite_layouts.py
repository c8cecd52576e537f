"""The tables of the SQLite catalogue, as the sequence of layouts that led to them.

A catalogue stores the number of its layout in ``user_version``. A file with an older layout is upgraded when it is opened, by
the scripts of the layouts that it lacks. A file with a newer layout is refused.

Tests: tests/metadata/test_sqlite_layouts.py.
"""

# 1: the first layout. `blob` in `groups` is in a format of the group coordinator.
_TOPICS_AND_GROUPS = """
CREATE TABLE topics (
    name TEXT PRIMARY KEY, topic_id BLOB NOT NULL UNIQUE, partitions INTEGER NOT NULL, configs TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE deleted_topics (topic_id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE broker_configs (
    entity TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (entity, name)
) WITHOUT ROWID;
CREATE TABLE offsets (
    group_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, committed INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL, metadata TEXT, commit_ms INTEGER NOT NULL, expire_ms INTEGER NOT NULL DEFAULT -1,
    PRIMARY KEY (group_id, topic, partition)
) WITHOUT ROWID;
CREATE INDEX offsets_by_topic ON offsets (topic);
CREATE TABLE groups (group_id TEXT PRIMARY KEY, blob BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE producer_ids (next INTEGER NOT NULL);
INSERT INTO producer_ids VALUES (0);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
# 2: transactions.
_TRANSACTIONS = """
CREATE TABLE transactions (
    transactional_id TEXT PRIMARY KEY, producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL, last_epoch INTEGER NOT NULL,
    timeout_ms INTEGER NOT NULL, phase TEXT NOT NULL, partitions TEXT NOT NULL, groups TEXT NOT NULL,
    started_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE pending_offsets (
    transactional_id TEXT NOT NULL, group_id TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    committed INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, metadata TEXT, commit_ms INTEGER NOT NULL,
    PRIMARY KEY (transactional_id, group_id, topic, partition)
) WITHOUT ROWID;
"""
# 3: the producer id that a producer had before it was given its present one.
_LAST_PRODUCER = """
ALTER TABLE transactions ADD COLUMN last_producer_id INTEGER NOT NULL DEFAULT -1;
UPDATE transactions SET last_producer_id = producer_id WHERE last_epoch >= 0;
"""

# 4: who may come in, what they may do, and how much they may take.
_SECURITY = """
CREATE TABLE acls (
    resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL, pattern_type INTEGER NOT NULL, principal TEXT NOT NULL,
    host TEXT NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,
    PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)
) WITHOUT ROWID;
CREATE TABLE credentials (
    user TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL, stored_key BLOB NOT NULL, server_key BLOB NOT NULL,
    iterations INTEGER NOT NULL, PRIMARY KEY (user, mechanism)
) WITHOUT ROWID;
CREATE TABLE quotas (
    entity TEXT NOT NULL, key TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (entity, key)
) WITHOUT ROWID;
"""

# 5: the cursors of subscriptions, and documents whose format is that of the service they belong to.
_CURSORS = """
CREATE TABLE cursors (
    topic_id BLOB NOT NULL, partition INTEGER NOT NULL, subscription TEXT NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (topic_id, partition, subscription)
) WITHOUT ROWID;
CREATE TABLE documents (kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""

# 6: the producer id that a producer gets when its transaction is complete. A broker that does not know it would go on with the
# old one, whose last epoch has been used.
_NEXT_PRODUCER = """
ALTER TABLE transactions ADD COLUMN next_producer_id INTEGER NOT NULL DEFAULT -1;
"""

# 7: what was added to an open transaction after its row was written, because the row has all of it: a partition of the topic
# `name`, or with the partition -1 the group `name`.
_TRANSACTION_ADDITIONS = """
CREATE TABLE transaction_additions (
    transactional_id TEXT NOT NULL, name TEXT NOT NULL, partition INTEGER NOT NULL,
    PRIMARY KEY (transactional_id, name, partition)
) WITHOUT ROWID;
"""

_LAYOUTS = (
    _TOPICS_AND_GROUPS,
    _TRANSACTIONS,
    _LAST_PRODUCER,
    _SECURITY,
    _CURSORS,
    _NEXT_PRODUCER,
    _TRANSACTION_ADDITIONS,
)

# Increases with each change of the tables that an older broker would misread.
LAYOUT_VERSION = len(_LAYOUTS)
# The first layout with secrets.
CREDENTIALS_SINCE = 4


def upgrade_script(version: int) -> str:
    """The SQL that brings a file with this layout version (0: an empty file) up to ``LAYOUT_VERSION``, in one transaction."""
    added = "".join(_LAYOUTS[version:])
    return f"BEGIN IMMEDIATE;{added}PRAGMA user_version={LAYOUT_VERSION};COMMIT;"
