"""The assembly: what is taken before what, and let go of after what."""

from pathlib import Path

import pytest

from broker.config import load
from broker.errors import ConfigError
from broker.metadata.sqlite import SqliteCatalogue
from broker.server import BrokerServer
from broker.storage.data_directory import LOCK


def server(data_dir: Path, open_catalogue: type[SqliteCatalogue] = SqliteCatalogue) -> BrokerServer:
    config = load(data_dir=str(data_dir), listeners=["kafka://127.0.0.1:0"])
    return BrokerServer(config, open_catalogue=open_catalogue)


class Untouchable(SqliteCatalogue):
    def __init__(self, path: str) -> None:
        raise AssertionError(f"{path} was opened")


def test_the_catalogue_is_not_touched_while_another_broker_has_the_directory(tmp_path: Path) -> None:
    first = server(tmp_path)
    first.start()
    try:
        with pytest.raises(ConfigError, match="Another broker"):
            server(tmp_path, Untouchable).start()
    finally:
        first.stop()


def test_nothing_is_touched_in_a_directory_that_is_not_a_broker_s(tmp_path: Path) -> None:
    (tmp_path / "thesis.odt").touch()
    with pytest.raises(ConfigError, match="not empty"):
        server(tmp_path, Untouchable).start()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.odt"]


def test_the_directory_is_let_go_of_last(tmp_path: Path) -> None:
    locked: list[bool] = []

    class Watched(SqliteCatalogue):
        def close(self) -> None:
            with pytest.raises(BlockingIOError):
                broker.runtime.disk.lock(f"{tmp_path}/{LOCK}")
            locked.append(True)
            super().close()

    broker = server(tmp_path, Watched)
    broker.start()
    broker.stop()
    assert locked == [True]
    broker.runtime.disk.lock(f"{tmp_path}/{LOCK}").close()


def test_a_start_that_fails_lets_the_directory_go(tmp_path: Path) -> None:
    (tmp_path / "catalogue.sqlite").write_text("this is no database, and long enough to be seen as such" * 100)
    for _ in range(2):
        with pytest.raises(ConfigError, match="catalogue"):
            server(tmp_path).start()
