"""Files of earlier layouts, as the broker wrote them, are upgraded."""

import sqlite3
from pathlib import Path

import pytest

from broker.metadata import sqlite_database
from broker.metadata.catalogue import StoredOffset, TransactionRow
from broker.metadata.sqlite import SqliteCatalogue

# As the broker wrote it before there were transactions.
FIRST_LAYOUT = """
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
INSERT INTO producer_ids VALUES (5);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO offsets VALUES ('g', 't', 0, 42, 0, '', 1000, -1);
PRAGMA user_version=1;
"""


def test_catalogue_of_first_layout_is_upgraded(tmp_path: Path) -> None:
    path = str(tmp_path / "catalogue.sqlite")
    connection = sqlite3.connect(path)
    connection.executescript(FIRST_LAYOUT)
    connection.close()
    Path(path).chmod(0o644)
    row = TransactionRow("x", 7, 1, -1, 60_000, "Ongoing", (("t", 0),), (), 1_000, 2_000, -1, -1)
    for _ in range(2):
        catalogue = SqliteCatalogue(path)
        catalogue.save_transactions([row])
        assert list(catalogue.load_offsets()) == [StoredOffset("g", "t", 0, 42, 0, "", 1000, -1)]
        assert list(catalogue.load_transactions()) == [row]
        catalogue.close()
    # Upgraded, it may contain credentials.
    assert Path(path).stat().st_mode & 0o777 == 0o600


SECOND_LAYOUT = (
    FIRST_LAYOUT.replace("user_version=1", "user_version=2")
    + """
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
INSERT INTO transactions VALUES ('new', 7, 0, -1, 60000, 'Ongoing', '[["t", 0]]', '["g"]', 1000, 2000);
INSERT INTO transactions VALUES ('went-on', 8, 3, 2, 60000, 'Empty', '[]', '[]', -1, 2000);
"""
)


def test_catalogue_of_second_layout_is_upgraded(tmp_path: Path) -> None:
    path = str(tmp_path / "catalogue.sqlite")
    connection = sqlite3.connect(path)
    connection.executescript(SECOND_LAYOUT)
    connection.close()
    for _ in range(2):
        catalogue = SqliteCatalogue(path)
        assert sorted(catalogue.load_transactions()) == [
            TransactionRow("new", 7, 0, -1, 60_000, "Ongoing", (("t", 0),), ("g",), 1_000, 2_000, -1, -1),
            TransactionRow("went-on", 8, 3, 2, 60_000, "Empty", (), (), -1, 2_000, 8, -1),
        ]
        catalogue.close()


def tables(path: str) -> tuple[int, list[tuple[str, str]]]:
    """The number of the layout, and the tables with the SQL that made them."""
    connection = sqlite3.connect(path)
    made = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return version, made


@pytest.mark.parametrize("version", range(1, sqlite_database.LAYOUT_VERSION))
def test_every_earlier_layout_becomes_the_present_one(tmp_path: Path, version: int) -> None:
    fresh, old = str(tmp_path / "fresh.sqlite"), str(tmp_path / "old.sqlite")
    SqliteCatalogue(fresh).close()
    connection = sqlite3.connect(old)
    connection.executescript("".join(sqlite_database._LAYOUTS[:version]) + f"PRAGMA user_version = {version};")
    connection.close()
    SqliteCatalogue(old).close()
    assert tables(fresh) == tables(old)


def test_guide_says_which_layouts_can_be_upgraded() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "RECOVERY.md").read_text()
    assert f"layouts 1 to {sqlite_database.LAYOUT_VERSION} of the catalogue" in guide
