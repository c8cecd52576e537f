"""Object stores by their URLs. Whether they work is tests/contract/test_objects.py, what the probe finds tests/durable."""

import subprocess
import sys
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.runtime.cloud_objects import CloudObjects
from broker.runtime.directory_objects import DirectoryObjects
from broker.runtime.objects import MemoryObjects
from broker.runtime.open_objects import open_objects, probe


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)


def test_memory_is_new_each_time() -> None:
    one, other = open_objects("memory://"), open_objects("memory://")
    one.put("key", [b"data"], 4)
    assert isinstance(one, MemoryObjects)
    assert [] == [*other.list("")]


def test_a_directory_is_made(tmp_path: Path) -> None:
    store = open_objects(f"file://{tmp_path}/new/objects")
    assert isinstance(store, DirectoryObjects)
    assert f"file://{tmp_path}/new/objects" == store.name
    probe(store)
    assert [] == [*store.list("")]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://my.bucket-1/a/b_c=1/", "s3://my.bucket-1/a/b_c=1"),
        ("gs://bucket/prefix", "gs://bucket/prefix"),
        ("az://container/prefix", "az://container/prefix"),
    ],
)
def test_a_bucket_is_opened_without_a_request(monkeypatch: pytest.MonkeyPatch, url: str, name: str) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    store = open_objects(url)
    assert isinstance(store, CloudObjects)
    assert name == store.name


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket",
        "/directory",
        "s3:bucket",
        "s4://bucket",
        "http://127.0.0.1/bucket",
        "S3://bucket",
        "://",
        "postgresql://u:pw@h",
    ],
)
def test_an_unknown_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^Set objects to a URL such as s3://bucket/prefix, ") as caught:
        open_objects(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["s3://key:secret@bucket/a", "s3://bucket?secret=1", "az://c/p?sig=secret", "file://u:secret@/a", "s3://b#secret"],
)
def test_credentials_in_a_url_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(ConfigError, match=r"set in the environment\.$") as caught:
        open_objects(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://b",
        "s3://bucket/a//b",
        "s3://bucket/a/../b",
        "s3://bucket/a b",
        "s3://bucket/" + "a/" * 150,
    ],
)
def test_a_bucket_or_prefix_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^Correct the bucket or the prefix in objects=s3://"):
        open_objects(url)


@pytest.mark.parametrize(
    ("url", "right"), [("file://relative/dir", "file:///relative/dir"), ("file://./dir", "file:///dir")]
)
def test_a_directory_is_absolute(url: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"as in {right}\\."):
        open_objects(url)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^Set objects to a directory that the broker may write to: .*/file: "):
        open_objects(f"file://{tmp_path}/file")


def test_memory_has_no_name() -> None:
    with pytest.raises(ConfigError, match="without a name"):
        open_objects("memory://name")


def test_the_extra_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r'run pip install "reactor-broker\[objects\]"'):
        open_objects("s3://bucket")


def test_what_the_environment_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(
        ConfigError, match=r"^Correct the environment for objects=az://container, .*AZURE_STORAGE_ACCOUNT_NAME"
    ):
        open_objects("az://container")


def test_obstore_is_imported_only_when_it_is_used() -> None:
    script = "import sys; import broker.runtime.open_objects as o; o.open_objects('memory://'); print('obstore' in sys.modules)"
    assert (
        "False\n" == subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    )


def test_a_store_is_an_error_in_a_forked_process() -> None:
    pytest.importorskip("obstore")
    script = """
import os, warnings
warnings.simplefilter("ignore")
from broker.runtime.objects import ObjectError
from broker.runtime.open_objects import open_objects
os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_ENDPOINT_URL="http://127.0.0.1:9")
store = open_objects("s3://bucket", deadline_s=0.5)
def attempt(name, store):
    for call in (lambda: store.size("key"), lambda: [*store.list("")], lambda: store.put("key", [bytes(20_000_000)], 20_000_000)):
        try:
            call()
        except ObjectError as error:
            print(name, error.reason, flush=True)
attempt("parent", store)
if os.fork() == 0:
    attempt("child", store)
    attempt("child", open_objects("s3://bucket", deadline_s=0.5))
    os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    connection = "parent there is no connection to http://127.0.0.1:9 (Connection refused)\n"
    assert connection * 3 + "child this process was forked from one that used object stores\n" * 6 == done.stdout
