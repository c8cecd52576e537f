"""Opens an object store by its URL, and tries at a start whether it does what the broker needs.

| URL | store |
|---|---|
| ``s3://bucket/prefix`` | S3, or what ``AWS_ENDPOINT_URL`` names |
| ``gs://bucket/prefix`` | Google Cloud Storage |
| ``az://container/prefix`` | Azure, the account of ``AZURE_STORAGE_ACCOUNT_NAME`` |
| ``file:///directory`` | a directory |
| ``memory://`` | the memory of this process, each time a new store |

Credentials, regions and endpoints come from the environment, or from the machine (roles of EC2, ECS and EKS; Google's and
Azure's). Files with profiles (``~/.aws``) are not read. Nothing of them is in a URL, in a message or in the log.
``SSL_CERT_FILE`` names authorities of certificates to trust instead of the machine's.

Tests: tests/runtime/test_open_objects.py, tests/durable/test_bad_stores.py.
"""

import os
import re
import uuid
from collections.abc import Mapping
from typing import Any

from broker.errors import ConfigError
from broker.runtime.cloud_objects import CloudObjects, Open
from broker.runtime.directory_objects import DirectoryObjects
from broker.runtime.objects import KEY_MAX, MemoryObjects, ObjectError, ObjectExists, ObjectStore, check_prefix

_EXAMPLE = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory"
# Of buckets and containers; S3 has the strictest rules.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
# Of S3's 1,024 bytes for a name, what keys leave.
_PREFIX_MAX = 1024 - KEY_MAX
# The variables that name another endpoint than the vendor's, and say that it needs no TLS.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


def open_objects(url: str, deadline_s: float = 30.0, read_only: bool = False) -> ObjectStore:
    """The store at ``url``. Nothing is sent yet. ``deadline_s`` is what a call may take (see ``CloudObjects``). ``read_only``:
    for looking only; a directory is not made then.

    ConfigError if it is no such URL, if it cannot be used, or without the packages that it needs.
    """
    scheme, separator, place = url.partition("://")
    if not separator or scheme not in ("memory", "file", *_ENDPOINTS):
        raise ConfigError(f"Set objects to a URL such as {_EXAMPLE}.")
    if set("@?#") & set(place):
        raise ConfigError(
            f"Take everything but the place out of the URL of objects, as in {_EXAMPLE}: credentials, endpoints and regions "
            "are set in the environment."
        )
    if scheme == "memory":
        if place:
            raise ConfigError("Set objects to memory:// without a name: each broker has a memory of its own.")
        return MemoryObjects()
    if scheme == "file":
        return _open_directory(place, read_only)
    return _open_cloud(scheme, place, deadline_s)


def _open_directory(path: str, read_only: bool) -> ObjectStore:
    if not path.startswith("/"):
        raise ConfigError(f"Write the directory of objects from the root on, as in file:///{path.lstrip('./')}.")
    try:
        return DirectoryObjects(path, read_only)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"Set objects to a directory that the broker may write to: {path}: {reason}.") from error


def _open_cloud(scheme: str, place: str, deadline_s: float) -> ObjectStore:
    bucket, _, prefix = place.partition("/")
    if not _BUCKET.fullmatch(bucket) or not _is_prefix(prefix):
        raise ConfigError(
            f"Correct the bucket or the prefix in objects={scheme}://{place}: a prefix has letters, digits and ._=@+~- only, "
            "with single slashes in between, and fewer than 256 characters."
        )
    prefix = check_prefix(prefix)
    name = f"{scheme}://{bucket}/{prefix}".rstrip("/")
    try:
        return CloudObjects(name, _opener(scheme, bucket, prefix), deadline_s, allow_http=_allows_http(scheme))
    except ImportError as error:
        raise ConfigError(f'To keep objects in {scheme}://, run pip install "reactor-broker[objects]".') from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "obstore":
            raise
        reason = str(error).partition("\n")[0]
        hint = f"set {_CREDENTIALS[scheme]}"
        raise ConfigError(f"Correct the environment for objects={name}, for example {hint}: {reason}.") from None


def _is_prefix(prefix: str) -> bool:
    try:
        check_prefix(prefix)
    except ValueError:
        return False
    return len(prefix) < _PREFIX_MAX


def _opener(scheme: str, bucket: str, prefix: str) -> Open:
    from obstore.store import AzureStore, GCSStore, S3Store

    kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]

    def open_store(client: Mapping[str, Any], retries: Mapping[str, Any]) -> Any:
        return kind(bucket, prefix=prefix or None, client_options=client, retry_config=retries)

    return open_store


def _allows_http(scheme: str) -> bool:
    """obstore wants to be told. Who names an endpoint without TLS wants it."""
    endpoint = next((os.environ[name] for name in _ENDPOINTS[scheme] if os.environ.get(name)), "")
    return endpoint.startswith("http://") or os.environ.get(_ALLOW_HTTP[scheme], "").lower() in ("1", "true")


def probe(store: ObjectStore) -> None:
    """Put, read, create twice, list and delete. ConfigError, in one sentence, if the store does not do what it must.

    That a second create fails is what some stores do not do, and older versions of others.
    """
    key = f"probe/{uuid.uuid4().hex}"
    try:
        store.put(key, [b"put"], 3)
        if (store.size(key), store.get(key, 1, 2)) != (3, b"ut") or dict(store.list("probe")).get(key) != 3:
            raise ConfigError(f"Use another store than {store.name}: it does not give back what was put.")
        store.put(f"{key}-created", [b"first"], 5, create=True)
        _must_exist(store, f"{key}-created")
        store.delete([key, f"{key}-created"])
        if key in dict(store.list("probe")):
            raise ConfigError(f"Use another store than {store.name}: it lists what was deleted.")
    except ObjectError as error:
        hint = _CREDENTIALS.get(store.name.partition("://")[0])
        way_out = f", or set {hint}" if hint and "credentials" in str(error) else ""
        raise ConfigError(
            f"See that the broker may put, get, list and delete objects in {store.name}{way_out}: {error}."
        ) from error


def _must_exist(store: ObjectStore, key: str) -> None:
    try:
        store.put(key, [b"second"], 6, create=True)
    except ObjectExists:
        return
    raise ConfigError(
        f"Use another store, or a newer version of it, than {store.name}: it does not honour If-None-Match, so two brokers "
        "could overwrite each other's objects."
    )
