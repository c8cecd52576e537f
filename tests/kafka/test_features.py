"""Which levels of the features are in force: across restarts, settings and brokers of other versions."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from broker.errors import ConfigError, StorageError
from broker.kafka.features import FEATURES, KIND, Feature, Features
from broker.metadata.catalogue import Catalogue
from broker.metadata.sqlite import SqliteCatalogue

ONE = (Feature("some.version", 0, 2, 1),)
OWN = {"reactor.something": (1, 1)}


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    catalogue = SqliteCatalogue(str(tmp_path / "catalogue.db"))
    yield catalogue
    catalogue.close()


def start(
    catalogue: Catalogue, max_levels: Mapping[str, int] | None = None, features: Iterable[Feature] = ONE
) -> Features:
    opened = Features(catalogue, max_levels or {}, OWN, features)
    opened.open()
    return opened


def test_every_feature_can_be_turned_off() -> None:
    for feature in FEATURES:
        assert 0 == feature.lowest <= feature.usual <= feature.highest


def test_feature_has_its_usual_level_unless_chosen(catalogue: Catalogue) -> None:
    told = start(catalogue).told
    assert {"some.version": (0, 2), "reactor.something": (1, 1)} == told.supported
    assert ({"some.version": 1}, 1) == (told.finalized, told.epoch)


def test_chosen_level_applies_at_once_and_after_restart(catalogue: Catalogue) -> None:
    features = start(catalogue)
    features.finalize({"some.version": 2})
    assert (2, 2) == (features.level("some.version"), features.told.epoch)
    assert features.told == start(catalogue).told


def test_what_a_client_was_told_does_not_change(catalogue: Catalogue) -> None:
    features = start(catalogue)
    told = features.told
    features.finalize({"some.version": 0})
    assert ({"some.version": 1}, 1) == (told.finalized, told.epoch)


def test_a_change_that_changes_nothing_keeps_the_epoch(catalogue: Catalogue) -> None:
    features = start(catalogue)
    features.finalize({"some.version": 1})
    features.finalize({"some.version": 1})
    assert 1 == features.told.epoch


def test_epoch_grows_when_a_restart_changes_levels(catalogue: Catalogue) -> None:
    start(catalogue).finalize({"some.version": 2})
    held = start(catalogue, {"some.version": 1})
    assert ({"some.version": 1}, 3) == (held.told.finalized, held.told.epoch)
    assert (0, 1) == held.told.supported["some.version"] == held.range("some.version")
    freed = start(catalogue)
    assert ({"some.version": 2}, 4) == (freed.told.finalized, freed.told.epoch)


def test_newer_broker_raises_an_unchosen_level(catalogue: Catalogue) -> None:
    start(catalogue)
    newer = (Feature("some.version", 0, 3, 3), Feature("other.version", 0, 1, 1))
    assert {"some.version": 3, "other.version": 1} == start(catalogue, features=newer).told.finalized


def test_newer_broker_keeps_a_chosen_level(catalogue: Catalogue) -> None:
    start(catalogue).finalize({"some.version": 1})
    assert 1 == start(catalogue, features=(Feature("some.version", 0, 3, 3),)).level("some.version")


def test_older_broker_limits_levels_and_keeps_choices(catalogue: Catalogue) -> None:
    newer = (Feature("some.version", 0, 3, 3), Feature("other.version", 0, 1, 1))
    start(catalogue, features=newer).finalize({"some.version": 3, "other.version": 0})
    older = start(catalogue)
    assert {"some.version": 2} == older.told.finalized
    older.finalize({"some.version": 1})
    assert {"some.version": 1, "other.version": 0} == start(catalogue, features=newer).told.finalized


def test_unstorable_change_is_not_applied(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    features = start(catalogue)

    def fail(changes: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "alter_documents", fail)
        with pytest.raises(StorageError):
            features.finalize({"some.version": 2})
    assert ({"some.version": 1}, 1) == (features.told.finalized, features.told.epoch)
    features.finalize({"some.version": 0})
    ((_, body),) = catalogue.load_documents(KIND)
    assert {"some.version": 0} == json.loads(body)["chosen"]


@pytest.mark.parametrize(
    ("max_levels", "said"),
    [
        ({"other.version": 1}, "some.version"),
        ({"some.version": 3}, "from 0 to 2"),
        ({"some.version": -1}, "from 0 to 2"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(catalogue: Catalogue, max_levels: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Features(catalogue, max_levels, OWN, ONE)
