"""What a restored data directory has besides the backup's data."""

from pathlib import Path

from broker.metadata.sqlite import SqliteCatalogue
from broker.runtime import copying
from broker.runtime.disk import SystemDisk
from broker.storage.backup.copying import DirectoryBackup, restore
from broker.storage.backup.layout import DATA, JOURNAL, Manifest, Plan, StoredFile, write_manifest
from broker.storage.data_directory import CATALOGUE

DISK = SystemDisk()


def test_restored_broker_skips_producer_ids_assigned_after_backup(tmp_path: Path) -> None:
    backup, data_dir = tmp_path / "backup", tmp_path / "data"
    (backup / DATA).mkdir(parents=True)
    (backup / JOURNAL).touch()
    path = str(backup / DATA / CATALOGUE)
    catalogue = SqliteCatalogue(path)
    given = catalogue.allocate_producer_ids(5) + 5
    catalogue.close()
    size, checksum = copying.checksum_of(path)
    stored = StoredFile(CATALOGUE, size, checksum, None)
    write_manifest(DISK, str(backup), Manifest(Plan("id", 1, "cluster", "0.1", (), ()), (stored,)))
    restore(DISK, DirectoryBackup(DISK, str(backup)), str(data_dir))
    restored = SqliteCatalogue(str(data_dir / CATALOGUE))
    assert restored.allocate_producer_ids(1) > given + 1_000_000
    restored.close()
