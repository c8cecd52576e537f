"""What real stores and networks do, and what ``ObjectStore`` makes of it: what may pass is tried again, the rest is an error that
names the operation and the key; nothing hangs, and nothing is lost, doubled or short."""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ConfigError
from broker.runtime.disk import Buffer
from broker.runtime.objects import ObjectError, ObjectExists, ObjectMissing, ObjectStore
from broker.runtime.open_objects import open_objects, probe
from tests import certificates
from tests.durable.bad_store import (
    Act,
    BadStore,
    cut,
    delay,
    drip,
    lie,
    lie_with,
    reset,
    shorten,
    silence,
    status,
)
from tests.durable.s3_server import BUCKET, S3Server, fresh_prefix

MIB = 1024 * 1024
# A request has a quarter of it. Long enough for a busy machine; with parts, for 32 MiB under way at once.
DEADLINE_S, DEADLINE_OF_PARTS_S = 8.0, 20.0
# For what fails in the end, whatever the machine does.
SHORT_S = 3.0

Call = Callable[[ObjectStore], Any]
CALLS: dict[str, Call] = {
    "put": lambda store: store.put("a/key", [b"0123456789"], 10),
    "create": lambda store: store.put("a/key", [b"0123456789"], 10, create=True),
    "get": lambda store: store.get("a/key", 0, 10),
    "size of": lambda store: store.size("a/key"),
    "list": lambda store: [*store.list("a/key")],
    "delete": lambda store: store.delete(["a/key"]),
    "put in parts": lambda store: store.put("a/key", (bytes(MIB) for _ in range(20)), 20 * MIB),
}
TRANSIENT: dict[str, Act] = {
    "500": status(500),
    "503": status(503, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"),
    "429": status(429),
    "reset": reset,
    "no answer": silence,
    "late": delay(1.0),
}


@pytest.fixture
def bad(seaweed: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadStore]:
    bad = BadStore(seaweed.port)
    for name, value in {**seaweed.environment, "AWS_ENDPOINT_URL": bad.endpoint}.items():
        monkeypatch.setenv(name, value)
    yield bad
    bad.close()


@pytest.fixture
def store(bad: BadStore) -> ObjectStore:
    return open_objects(f"s3://{BUCKET}/{fresh_prefix()}", DEADLINE_S)


@pytest.fixture
def hasty(store: ObjectStore) -> ObjectStore:
    """The same objects with a short deadline."""
    return open_objects(store.name, SHORT_S)


@pytest.fixture
def patient(store: ObjectStore) -> ObjectStore:
    """The same objects with a long deadline."""
    return open_objects(store.name, DEADLINE_OF_PARTS_S)


@pytest.fixture
def sound(store: ObjectStore, seaweed: S3Server) -> ObjectStore:
    """The same objects, around the proxy."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return seaweed.open(store.name.removeprefix(f"s3://{BUCKET}/"), monkeypatch)


@pytest.fixture
def behind_tls(seaweed: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The store speaks TLS, with the certificate of this authority."""
    files = certificates.server().write(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    bad = BadStore(seaweed.port, context)
    for name, value in {**seaweed.environment, "AWS_ENDPOINT_URL": bad.endpoint}.items():
        monkeypatch.setenv(name, value)
    yield files.authority
    bad.close()


def put(store: ObjectStore, key: str, data: bytes, *, create: bool = False) -> None:
    store.put(key, [data], len(data), create=create)


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("call", CALLS)
def test_what_passes_is_tried_again(
    bad: BadStore, store: ObjectStore, patient: ObjectStore, sound: ObjectStore, call: str, fault: str
) -> None:
    if call not in ("put", "create", "put in parts"):
        put(sound, "a/key", b"0123456789")
    taken = bad.fail(TRANSIENT[fault])
    result = CALLS[call](patient if call == "put in parts" else store)
    assert 1 == taken.hits
    if call in ("put", "create"):
        assert b"0123456789" == sound.get("a/key", 0, 10)
    elif call == "put in parts":
        assert 20 * MIB == sound.size("a/key")
    elif call == "delete":
        assert [] == [*sound.list("")]
    else:
        assert {"get": b"0123456789", "size of": 10, "list": []}[call] == result


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        *((call, fault) for call in CALLS for fault in ("503", "no answer")),
        *(("get", fault) for fault in ("500", "429", "reset")),
    ],
)
def test_what_does_not_pass_is_an_error_in_the_end(bad: BadStore, hasty: ObjectStore, call: str, fault: str) -> None:
    bad.fail(TRANSIENT[fault], times=None)
    reason = {
        "500": "500 Internal Server Error from http://127",
        "503": "503 Service Unavailable from http://127[^,]*(, SlowDown: Reduce your request rate.)?$",
        "429": "429 Too Many Requests from http://127",
        "reset": "http://127.* closed the connection$",
        "no answer": r"http://127.* did not answer in 0\.75 s$",
    }[fault]
    with pytest.raises(ObjectError, match=rf"^{call.removesuffix(' in parts')} a/key in {hasty.name}: {reason}"):
        CALLS[call](hasty)


@pytest.mark.parametrize("call", ["get", "list", "put in parts"])
def test_a_store_that_is_away_is_an_error(
    monkeypatch: pytest.MonkeyPatch, seaweed: S3Server, bad: BadStore, call: str
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        store = open_objects(f"s3://{BUCKET}", DEADLINE_S)
        with pytest.raises(
            ObjectError, match=r"a/key in s3://bucket: there is no connection to http://127.* \(Connection refused\)$"
        ):
            CALLS[call](store)


@pytest.mark.parametrize("code", [400, 403, 405])
@pytest.mark.parametrize("call", [call for call in CALLS if call != "put in parts"])
def test_a_refusal_is_an_error_at_once(bad: BadStore, store: ObjectStore, call: str, code: int) -> None:
    bad.fail(status(code), times=None)
    with pytest.raises(ObjectError, match=rf"^{call} a/key in {store.name}: {code} "):
        CALLS[call](store)
    assert 1 == len(bad.requests)


@pytest.mark.parametrize("lies", [lie, lie_with(500), lie_with(503)])
def test_a_create_whose_answer_is_lost_has_worked(bad: BadStore, store: ObjectStore, lies: Act) -> None:
    taken = bad.fail(lies, "PUT")
    put(store, "a/key", b"mine", create=True)
    assert 1 == taken.hits
    assert b"mine" == store.get("a/key", 0, 4)


def test_a_create_all_of_whose_answers_are_lost_has_worked(bad: BadStore, hasty: ObjectStore) -> None:
    bad.fail(lie_with(500), "PUT", times=None)
    with pytest.raises(ObjectError, match="create a/key"):
        put(hasty, "a/key", b"mine", create=True)
    bad.repair()
    put(hasty, "a/key", b"mine", create=True)


def test_a_create_whose_answer_is_lost_does_not_take_another_s_object_for_its_own(
    bad: BadStore, store: ObjectStore, sound: ObjectStore
) -> None:
    put(sound, "a/key", b"yours")
    bad.fail(lie, "PUT")
    with pytest.raises(ObjectExists, match="create a/key"):
        put(store, "a/key", b"mine!", create=True)
    assert b"yours" == sound.get("a/key", 0, 5)


def test_a_create_waits_for_another_that_is_under_way(bad: BadStore, store: ObjectStore) -> None:
    bad.fail(status(409), "PUT")
    put(store, "a/key", b"mine", create=True)
    assert b"mine" == store.get("a/key", 0, 4)


@pytest.mark.parametrize("call", ["put", "delete"])
@pytest.mark.parametrize("lies", [lie, lie_with(500)])
def test_what_was_done_is_done_again_if_its_answer_is_lost(
    bad: BadStore, store: ObjectStore, sound: ObjectStore, call: str, lies: Act
) -> None:
    put(sound, "a/key", b"before")
    bad.fail(lies)
    CALLS[call](store)
    assert ([("a/key", 10)] if call == "put" else []) == [*sound.list("")]


@pytest.mark.parametrize("sent", [0, 4, 9])
def test_an_answer_that_is_cut_is_asked_for_again(bad: BadStore, store: ObjectStore, sent: int) -> None:
    put(store, "a/key", b"0123456789")
    taken = bad.fail(cut(sent), "GET")
    assert b"0123456789" == store.get("a/key", 0, 10)
    assert 1 == taken.hits


def test_answers_that_are_always_cut_are_an_error(bad: BadStore, hasty: ObjectStore) -> None:
    put(hasty, "a/key", b"0123456789")
    bad.fail(cut(4), "GET", times=None)
    with pytest.raises(ObjectError, match=rf"^get a/key in {hasty.name}: "):
        hasty.get("a/key", 0, 10)


def test_an_answer_that_drips_is_an_error_in_the_end(bad: BadStore, hasty: ObjectStore, sound: ObjectStore) -> None:
    put(sound, "a/key", bytes(1000))
    taken = bad.fail(drip, "GET", times=None)
    with pytest.raises(ObjectError, match=rf"^get a/key in {hasty.name}: the store did not answer in 0\.75 s$"):
        hasty.get("a/key", 0, 1000)
    assert 1 <= taken.hits <= 4


def test_an_object_that_is_cut_is_an_error(bad: BadStore, store: ObjectStore) -> None:
    put(store, "a/key", b"0123456789")
    bad.fail(shorten(4), "GET", times=None)
    with pytest.raises(ObjectError, match=rf"^get a/key in {store.name}: it ends before byte 10$"):
        store.get("a/key", 0, 10)


@pytest.mark.parametrize("call", ["get", "size of"])
def test_one_answer_does_not_make_an_object_missing(bad: BadStore, store: ObjectStore, call: str) -> None:
    put(store, "a/key", b"0123456789")
    bad.fail(status(404))
    assert {"get": b"0123456789", "size of": 10}[call] == CALLS[call](store)


@pytest.mark.parametrize("call", ["get", "size of"])
def test_two_answers_make_an_object_missing(bad: BadStore, store: ObjectStore, call: str) -> None:
    put(store, "a/key", b"0123456789")
    taken = bad.fail(status(404), times=None)
    with pytest.raises(ObjectMissing, match=rf"^{call} a/key in {store.name}: there is no such object$"):
        CALLS[call](store)
    assert 2 == taken.hits


@pytest.mark.parametrize("call", [call for call in CALLS if call != "size of"])
def test_a_missing_bucket_is_told_from_a_missing_object(bad: BadStore, store: ObjectStore, call: str) -> None:
    bad.fail(
        status(404, b"<Error><Code>NoSuchBucket</Code><Message>There is no such bucket.</Message></Error>"), times=None
    )
    with pytest.raises(
        ObjectError, match=r"a/key in .*: 404 Not Found from .*, NoSuchBucket: There is no such bucket.$"
    ) as caught:
        CALLS[call](store)
    assert not isinstance(caught.value, ObjectMissing)


def test_a_part_that_fails_is_sent_again(bad: BadStore, patient: ObjectStore) -> None:
    faults = [bad.fail(act, "PUT", where="partNumber=2") for act in (status(503), reset, lie)]
    data = b"".join(bytes([n]) * MIB for n in range(20))
    patient.put("a/key", [data[:MIB], data[MIB:]], len(data))
    assert [1, 1, 1] == [fault.hits for fault in faults]
    assert data == patient.get("a/key", 0, len(data))


@pytest.mark.parametrize("lies", [lie, lie_with(500)])
def test_a_put_in_parts_whose_last_answer_is_lost_is_whole_and_may_be_an_error(
    bad: BadStore, patient: ObjectStore, sound: ObjectStore, lies: Act
) -> None:
    """Some stores have forgotten the upload at the second try. What is there then may be an older object of the same size."""
    data = b"".join(bytes([n]) * MIB for n in range(20))
    taken = bad.fail(lies, "POST", where="uploadId")
    with contextlib.suppress(ObjectError):
        patient.put("a/key", [data], len(data))
    assert 1 == taken.hits
    assert data == sound.get("a/key", 0, len(data))


@pytest.mark.parametrize("where", ["uploads", "partNumber=1", "uploadId"])
def test_an_object_whose_parts_do_not_get_through_is_not_there(
    bad: BadStore, hasty: ObjectStore, sound: ObjectStore, where: str
) -> None:
    bad.fail(status(503), where=where, times=None)
    with pytest.raises(ObjectError, match=r"^put a/key in "):
        CALLS["put in parts"](hasty)
    assert [] == [*sound.list("")]


def test_a_source_is_not_read_any_more_once_a_part_has_failed(bad: BadStore, hasty: ObjectStore) -> None:
    read = 0

    def source() -> Iterator[Buffer]:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield bytes(MIB)

    bad.fail(silence, where="partNumber", times=None)
    with pytest.raises(ObjectError, match=r"^put a/key in "):
        hasty.put("a/key", source(), 1000 * MIB)
    assert read < 100


def test_a_source_that_is_too_slow_is_not_read_any_more(hasty: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def source() -> Iterator[Buffer]:
        while True:
            time.sleep(0.1)
            yield b"x"

    monkeypatch.setattr("broker.runtime.cloud_objects._SLOWEST", 1e9)
    with pytest.raises(ObjectError, match=r"^put a/key in .*: it is too slow for 20971520 bytes$"):
        hasty.put("a/key", source(), 20 * MIB)


def batch_answer(store: ObjectStore, code: str) -> bytes:
    prefix = store.name.removeprefix(f"s3://{BUCKET}/")
    return (
        f'<?xml version="1.0"?><DeleteResult><Deleted><Key>{prefix}/a/other</Key></Deleted><Error><Key>{prefix}/a/key</Key>'
        f"<Code>{code}</Code><Message>Not now.</Message></Error></DeleteResult>"
    ).encode()


def test_an_error_within_a_batch_of_deletions_is_raised(bad: BadStore, store: ObjectStore) -> None:
    bad.fail(status(200, batch_answer(store, "AccessDenied")), "POST", times=None)
    with pytest.raises(ObjectError, match=r"^delete a/key in .*AccessDenied"):
        store.delete(["a/key", "a/other"])
    assert 1 == len(bad.requests)


def test_a_deletion_that_is_put_off_is_tried_again(bad: BadStore, store: ObjectStore) -> None:
    put(store, "a/key", b"data")
    bad.fail(status(200, batch_answer(store, "SlowDown")), "POST")
    store.delete(["a/key", "a/other"])
    assert [] == [*store.list("")]


@pytest.mark.parametrize("call", ["get", "delete", "put in parts"])
def test_an_answer_that_makes_no_sense_is_an_error(bad: BadStore, store: ObjectStore, call: str) -> None:
    bad.fail(status(200, b"<html>Welcome</html>"), times=None)
    with pytest.raises(ObjectError, match=rf"^{call.removesuffix(' in parts')} a/key in "):
        CALLS[call](store)


def test_a_mistake_of_the_library_is_an_error(
    bad: BadStore, store: ObjectStore, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = batch_answer(store, "AccessDenied").replace(b"a/key", b"what nobody asked for")
    bad.fail(status(200, answer), "POST", times=None)
    with pytest.raises(ObjectError, match=r"^delete a/key in .*"):
        store.delete(["a/key", "a/other"])


def test_missing_objects_are_no_error_where_the_store_says_so(
    bad: BadStore, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Google and Azure do; without batches, as for them."""
    monkeypatch.setenv("AWS_DISABLE_BULK_DELETE", "true")
    store = open_objects(store.name, DEADLINE_S)
    keys = [f"a/{n}" for n in range(5)]
    for key in keys:
        put(store, key, b"data")
    bad.fail(status(404), "DELETE", where="/a/2", times=None)
    bad.fail(status(503), "DELETE", where="/a/3")
    store.delete(keys)
    assert [("a/2", 4)] == [*store.list("")]


def test_a_page_that_fails_in_the_middle_is_asked_for_again(
    bad: BadStore, store: ObjectStore, sound: ObjectStore
) -> None:
    for n in range(1001):
        put(sound, f"many/{n}", b"x")
    taken = bad.fail(status(503), where="continuation-token")
    assert 1001 == len([*store.list("many")])
    assert 1 == taken.hits


@pytest.mark.parametrize("call", CALLS)
def test_no_message_has_the_credentials(
    monkeypatch: pytest.MonkeyPatch, bad: BadStore, call: str, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a wrong secret")
    store = open_objects(f"s3://{BUCKET}", DEADLINE_S)
    with pytest.raises(ObjectError, match="a/key in s3://bucket: 403 ") as caught:
        CALLS[call](store)
    assert "wrong" not in repr(caught.value) + str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert ("", "") == capfd.readouterr()


def test_a_good_store_passes_the_probe_and_is_left_clean(store: ObjectStore) -> None:
    probe(store)
    assert [] == [*store.list("")]


def test_a_store_that_creates_twice_fails_the_probe(bad: BadStore, store: ObjectStore) -> None:
    bad.fail(status(200), "PUT", times=None, matches=lambda headers: headers.get("If-None-Match") == "*")
    with pytest.raises(ConfigError, match=r"Use another store, or a newer version of it, than s3://.* If-None-Match"):
        probe(store)


def test_a_store_that_gives_something_else_fails_the_probe(bad: BadStore, store: ObjectStore) -> None:
    bad.fail(status(200), "PUT", times=None)
    with pytest.raises(ConfigError, match="See that the broker may put, get, list and delete objects in s3://"):
        probe(store)


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD", "POST"])
def test_missing_rights_fail_the_probe(bad: BadStore, store: ObjectStore, method: str) -> None:
    bad.fail(status(403), method, times=None)
    with pytest.raises(
        ConfigError, match=r"See that the broker may put, get, list and delete objects in s3://.*: 403 "
    ):
        probe(store)


def test_a_machine_without_credentials_fails_the_probe(bad: BadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    bad.fail(status(404), times=None)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", bad.endpoint)
    with pytest.raises(
        ConfigError, match=r"or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: .*no credentials were found"
    ):
        probe(open_objects(f"s3://{BUCKET}", DEADLINE_S))


def test_credentials_that_do_not_come_are_an_error_in_the_end(bad: BadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    bad.fail(silence, times=None)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", bad.endpoint)
    store = open_objects(f"s3://{BUCKET}", SHORT_S)
    for call in ("get", "create", "list", "put in parts"):
        with pytest.raises(
            ObjectError, match=r"a/key in s3://bucket: no credentials were found \(.* did not answer in "
        ):
            CALLS[call](store)


def test_a_certificate_that_is_not_trusted_fails_the_probe(behind_tls: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the certificate of https://127.* is not trusted \(UnknownIssuer\): SSL_CERT_FILE"
    ):
        probe(open_objects(f"s3://{BUCKET}", DEADLINE_S))


def test_an_authority_may_be_named(behind_tls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(behind_tls))
    probe(open_objects(f"s3://{BUCKET}/{fresh_prefix()}", DEADLINE_S))
