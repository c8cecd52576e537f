"""Tenants and namespaces: which there are, also after a restart and after a failure."""

from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.metadata.sqlite import SqliteCatalogue
from broker.pulsar import namespaces as module
from broker.pulsar.namespaces import NAMESPACE_KIND, AlreadyExists, Namespaces
from broker.pulsar.refusals import NotAllowed, TooManyRequests, TopicNotFound
from tests.pulsar.two_nodes import TwoNodes


@pytest.fixture
def catalogue(tmp_path: Path) -> SqliteCatalogue:
    return SqliteCatalogue(str(tmp_path / "catalogue"))


def loaded(catalogue: SqliteCatalogue) -> Namespaces:
    made = Namespaces(catalogue, ["public/default", "shop/eu"])
    made.load()
    return made


def test_those_of_the_settings_are_always_there(catalogue: SqliteCatalogue) -> None:
    names = loaded(catalogue)
    assert ["public", "shop"] == names.tenants()
    assert ["public/default"] == names.namespaces("public")
    assert names.exists("shop/eu")
    with pytest.raises(NotAllowed, match="pulsar_namespaces"):
        names.delete("shop/eu")


def test_what_is_made_and_deleted_stays_so(catalogue: SqliteCatalogue) -> None:
    names = loaded(catalogue)
    names.put_tenant("lab", {"adminRoles": ["me"]}, new=True)
    for namespace in ("lab/a", "lab/b"):
        names.create(namespace)
    names.delete("lab/a")
    again = loaded(catalogue)
    assert ["lab/b"] == again.namespaces("lab")
    assert {"adminRoles": ["me"]} == again.tenant("lab")
    again.delete("lab/b")
    again.delete_tenant("lab")
    assert ["public", "shop"] == loaded(catalogue).tenants()


def test_what_contradicts_is_refused_and_changes_nothing(catalogue: SqliteCatalogue) -> None:
    names = loaded(catalogue)
    with pytest.raises(AlreadyExists):
        names.put_tenant("public", {}, new=True)
    with pytest.raises(TopicNotFound):
        names.put_tenant("lab", {}, new=False)
    with pytest.raises(TopicNotFound):
        names.create("lab/a")
    with pytest.raises(AlreadyExists):
        names.create("public/default")
    with pytest.raises(AlreadyExists):
        names.delete_tenant("public")
    with pytest.raises(TopicNotFound):
        names.delete("public/other")
    with pytest.raises(NotAllowed):
        names.put_tenant("lab", {"adminRoles": ["x" * 100_000]}, new=True)
    assert ["public", "shop"] == loaded(catalogue).tenants()


def test_there_is_a_bound(catalogue: SqliteCatalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENANTS_MAX", 3)
    monkeypatch.setattr(module, "NAMESPACES_MAX", 3)
    names = loaded(catalogue)
    names.put_tenant("lab", {}, new=True)
    names.create("lab/a")
    with pytest.raises(TooManyRequests):
        names.put_tenant("more", {}, new=True)
    with pytest.raises(TooManyRequests):
        names.create("lab/b")


def test_what_could_not_be_written_is_not_there(catalogue: SqliteCatalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    names = loaded(catalogue)

    def fail(changes: object) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(catalogue, "alter_documents", fail)
    with pytest.raises(StorageError):
        names.create("public/other")
    assert not names.exists("public/other")


def test_unreadable_document_stops_the_start(catalogue: SqliteCatalogue) -> None:
    catalogue.alter_documents([(NAMESPACE_KIND, "public/other", b"[1]")])
    with pytest.raises(StorageError, match="cannot be read"):
        loaded(catalogue)


def test_two_nodes_have_the_same_tenants_and_namespaces(tmp_path: Path, catalogue: SqliteCatalogue) -> None:
    cluster = TwoNodes(tmp_path)
    one, other = (Namespaces(catalogue, ["public/default"], node) for node in cluster.nodes)
    told: list[str] = []
    other.on_roles_changed.append(lambda: told.append("roles"))
    for names, reloads in zip((one, other), cluster.reloads, strict=True):
        names.load()
        reloads.append(names.reload)
    one.put_tenant("lab", {"adminRoles": ["me"]}, new=True)
    assert ["roles"] == told
    assert other.administers("me", "lab")
    other.create("lab/a", prepare=lambda: one.exists("lab/a") and pytest.fail("too early"))
    assert one.exists("lab/a")
    with pytest.raises(AlreadyExists):
        one.create("lab/a")
    one.delete("lab/a")
    other.delete_tenant("lab")
    assert (["public"], False) == (one.tenants(), one.administers("me", "lab"))
    assert one.exists("public/default")
