"""Objects in S3 and what speaks its protocol, in Google Cloud Storage and in Azure, through ``obstore`` (extra ``objects``).

obstore does the requests on its own threads, and the calling thread waits without the interpreter's lock. This module adds:

- **Deadlines.** Each request has a quarter of ``deadline_s``, its connection, name look-up and body included. What may pass
  (429, 500, 503, a time-out, no connection) is tried again, with growing pauses, as long as the answer can come in time.
- **Exact reads.** obstore cuts a range at the object's end; here that is an error.
- **Creating.** A create whose answer was lost meets its own object at the next try: the content tells whose it is.
- **Errors** with one line that says what the store answered, without the request, whose URL may be signed.

A put in parts, and a list, leave trying again to obstore, request by request. Parts of a put that failed may stay in the store,
unseen and paid for: buckets need a rule that removes incomplete uploads. obstore does not work in a forked process, where its
calls never return: they are an error there.

For any thread.

Tests: tests/contract/test_objects.py, tests/durable/test_bad_stores.py.
"""

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

from broker.runtime import forks
from broker.runtime.disk import Buffer
from broker.runtime.objects import (
    ObjectError,
    ObjectExists,
    ObjectMissing,
    Parts,
    check_key,
    check_prefix,
    check_range,
    joined,
    joined_to_create,
    too_short,
)

T = TypeVar("T")

# What is larger goes in parts of this size, a few at a time; S3 takes 5 MiB to 5 GiB, and 10,000 of them.
_PART_BYTES, _PARTS_AT_ONCE = 8 * 1024 * 1024, 4
# Least bytes a second at which a put in parts gets through in time.
_SLOWEST = 1024 * 1024
# Parts of the deadline: how long a request takes at most; how long obstore begins it again; and its longest pause before that. In
# all 11/16, so a page of a list comes in time.
_REQUEST, _AGAIN, _PAUSE = 1 / 4, 3 / 8, 1 / 16
# So long a put in parts reads its source: its last two rounds of requests, the last parts and what joins them, take 22/16.
_READING = 5 / 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# Of S3 and of its batch of deletions.
_PAGE = 1000

_STATUS = re.compile(r"status code: (\d{3})([^:\n<]*)")
_XML = re.compile(r"<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?")
_IN_BATCH = re.compile(r"\(code: (\w+)\)")
_HOST = re.compile(r"performing \w+ (https?://)(?:[^/@\s]*@)?([^/?\s]+)")
_HTTP_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_OS_REASON = re.compile(r'(?:message|error): "([^"]*)"')
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
# Where machines of Amazon, Google and Azure, and containers, have their credentials.
_CREDENTIALS = re.compile(r"https?://(169\.254\.\d+\.\d+|metadata\.google\.internal|[^/\s]*/latest/api/token)")
_MAY_PASS = frozenset({408, 425, 429})
# In answers with 200, and for single objects of a batch.
_CODES_MAY_PASS = frozenset({"InternalError", "SlowDown", "ServiceUnavailable"})
_REASON_MAX = 300

# obstore's threads are those of the process that used it first (the number of forks before it).
_process: int | None = None

Open = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]


class _Again(Exception):
    """It needs another request."""

    def __init__(self, reason: str, at_once: bool = False) -> None:
        super().__init__(reason)
        self.at_once = at_once


class CloudObjects:
    """``open_store`` gets obstore's client options and retry configuration and returns one of its stores.

    No call takes longer than ``deadline_s``: of a list or a delete each thousand keys, of a get each 8 MiB. A put of more than
    8 MiB may take twice as long, and another second for each MiB. What ``open_store`` raises is not caught.
    """

    def __init__(self, name: str, open_store: Open, deadline_s: float = 30.0, allow_http: bool = False) -> None:
        import obstore

        self.name = name
        self._obstore: Any = obstore
        self._deadline_s = deadline_s
        self._request_s = deadline_s * _REQUEST
        client = {
            "allow_http": allow_http,
            "timeout": timedelta(seconds=self._request_s),
            "connect_timeout": timedelta(seconds=self._request_s),
        }
        longest = min(_LONGEST_PAUSE_S, deadline_s * _PAUSE)
        first = min(_FIRST_PAUSE_S, longest / 2)  # obstore panics where the first is the longer one
        backoff = {"init_backoff": timedelta(seconds=first), "max_backoff": timedelta(seconds=longest), "base": 2}
        in_time = timedelta(seconds=deadline_s * _AGAIN)
        self._once = open_store(client, {"max_retries": 0, "backoff": backoff, "retry_timeout": in_time})
        self._patient = open_store(client, {"max_retries": 1000, "backoff": backoff, "retry_timeout": in_time})

    def put(self, key: str, parts: Iterable[Buffer], size: int, *, create: bool = False) -> None:
        check_key(key)
        if create:
            self._create(key, joined_to_create(key, parts, size))
        elif size <= _PART_BYTES:
            data = joined(parts, size)
            self._call("put", key, lambda: self._obstore.put(self._once, key, data, use_multipart=False))
        else:
            self._put_parts(key, Parts(parts, size), size)

    def get(self, key: str, offset: int, size: int) -> bytes:
        check_key(key)
        check_range(offset, size)
        if not size:
            return b""
        starts = range(offset, offset + size, _PART_BYTES)
        sizes = [min(_PART_BYTES, offset + size - start) for start in starts]
        pieces = [
            self._call("get", key, lambda start=start, length=length: self._get(key, start, length))  # type: ignore[misc]
            for start, length in zip(starts, sizes, strict=True)
        ]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def size(self, key: str) -> int:
        check_key(key)
        return int(self._call("size of", key, lambda: self._obstore.head(self._once, key)["size"]))

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        prefix = check_prefix(prefix)
        try:
            self._check_process("list", prefix)
            for page in self._obstore.list(self._patient, prefix or None, chunk_size=_PAGE):
                for meta in page:
                    yield meta["path"], meta["size"]
        except BaseException as error:
            raise self._failed("list", prefix, error)[0] from None

    def delete(self, keys: Iterable[str]) -> None:
        iterator = iter(keys)
        while batch := [*islice(iterator, _PAGE)]:
            for key in batch:
                check_key(key)
            self._delete(batch)

    def _create(self, key: str, data: bytes) -> None:
        exists = False

        def attempt() -> None:
            nonlocal exists
            if not exists:
                try:
                    self._obstore.put(self._once, key, data, mode="create")
                    return
                except self._obstore.exceptions.AlreadyExistsError:
                    exists = True
                    raise _Again("there is an object under this key", at_once=True) from None
            try:
                same = self._is(key, data)
            except FileNotFoundError:  # it is gone, or two were at it at once, and neither has won yet
                exists = False
                raise _Again("others change the object at the same time") from None
            if not same:
                raise ObjectExists(key, self.name)

        self._call("create", key, attempt)

    def _is(self, key: str, data: bytes) -> bool:
        stored = self._obstore.get(self._once, key)
        return bool(stored.meta["size"] == len(data) and stored.bytes().to_bytes() == data)

    def _get(self, key: str, offset: int, size: int) -> bytes:
        try:
            data: bytes = self._obstore.get_range(self._once, key, start=offset, length=size).to_bytes()
        except self._obstore.exceptions.GenericError as error:
            status = _STATUS.search(str(error))
            if status is not None and status[1] == "416":
                raise too_short(key, self.name, offset, size) from None
            raise
        if len(data) != size:
            raise too_short(key, self.name, offset, size)
        return data

    def _put_parts(self, key: str, parts: Parts, size: int) -> None:
        end = time.monotonic() + self._deadline_s * _READING + size / _SLOWEST

        def in_time() -> Iterator[Buffer]:
            for part in parts:
                if time.monotonic() > end:
                    raise ObjectError("put", key, self.name, f"it is too slow for {size} bytes")
                yield part

        self._check_process("put", key)
        try:
            self._obstore.put(
                self._patient,
                key,
                in_time(),
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        except BaseException as error:
            if isinstance(parts.failure, Exception):
                raise parts.failure from None
            raise self._failed("put", key, error)[0] from None

    def _delete(self, keys: Sequence[str]) -> None:
        end = time.monotonic() + self._deadline_s - self._request_s

        def attempt() -> None:
            try:
                self._obstore.delete(self._once, keys)
            except FileNotFoundError as error:  # Google and Azure say so if one is missing
                if _NO_BUCKET.search(str(error)):
                    raise
                for key in keys:
                    if time.monotonic() > end:
                        raise _Again("it takes too long to delete one after the other") from None
                    try:
                        self._obstore.delete(self._once, key)
                    except FileNotFoundError:
                        pass

        self._call("delete", keys[0], attempt)

    def _call(self, operation: str, key: str, attempt: Callable[[], T]) -> T:
        """Its result. It is called again, for one request each time, as long as that ends in time."""
        self._check_process(operation, key)
        last = time.monotonic() + self._deadline_s - self._request_s
        pause, missing = _FIRST_PAUSE_S, False
        while True:
            try:
                return attempt()
            except ObjectExists:
                raise
            except BaseException as error:
                failure, may_pass = self._failed(operation, key, error)
                at_once = isinstance(error, _Again) and error.at_once
            if not may_pass:
                # Behind a gateway, a single answer does not prove that something is lost.
                if missing or not isinstance(failure, ObjectMissing):
                    raise failure from None
                missing = True
            wait = 0.0 if at_once else pause * random.uniform(0.5, 1)
            if time.monotonic() + wait > last:
                raise failure from None
            time.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _check_process(self, operation: str, key: str) -> None:
        global _process
        if _process is None:
            _process = forks.count()
        elif _process != forks.count():
            raise ObjectError(operation, key, self.name, "this process was forked from one that used object stores")

    def _failed(self, operation: str, key: str, error: BaseException) -> tuple[ObjectError, bool]:
        """The error to raise, and whether another try may work. Raises those that are not the store's."""
        if isinstance(error, ObjectError):
            return error, False
        if isinstance(error, _Again):
            return ObjectError(operation, key, self.name, str(error)), True
        if type(error).__name__ == "PanicException":  # no Exception
            return ObjectError(operation, key, self.name, "obstore does not understand its answer"), False
        if not isinstance(error, (FileNotFoundError, self._obstore.exceptions.BaseError)):
            raise error
        text = str(error)
        if isinstance(error, FileNotFoundError) and operation in ("get", "size of") and not _NO_BUCKET.search(text):
            return ObjectMissing(operation, key, self.name), False
        reason, may_pass = explain(text, self._request_s)
        return ObjectError(operation, key, self.name, reason), may_pass


def explain(text: str, request_s: float) -> tuple[str, bool]:
    """What an error of obstore says, in a line with nothing of the request but its host; and whether another try may work."""
    text, _, debug = text.partition("\n\nDebug source")
    host_match = _HOST.search(text)
    host = "".join(host_match.groups()) if host_match else "the store"
    status, xml, kind = _STATUS.search(text), _XML.search(text), _HTTP_KIND.search(debug)
    may_pass = False
    if status:
        code = int(status[1])
        may_pass = code >= 500 or code in _MAY_PASS
        reason = f"{code}{status[2].rstrip()} from {host}"
        if xml:
            reason += f", {xml[1]}" + (f": {xml[2]}" if xml[2] else "")
    elif certificate := _CERTIFICATE.search(debug):
        reason = f"the certificate of {host} is not trusted ({certificate[1]}): SSL_CERT_FILE may name its authority"
    elif "HTTP error" in text:
        may_pass = True
        detail = _OS_REASON.search(debug)
        reason = {
            "Connect": f"there is no connection to {host}" + (f" ({detail[1]})" if detail else ""),
            "Timeout": f"{host} did not answer in {request_s:g} s",
            "Interrupted": f"{host} closed the connection",
        }.get(kind[1] if kind else "", f"the request to {host} failed")
    else:  # an answer with 200 may be a failure, too
        reason = text.rpartition(" - ")[2].partition("\n")[0]
        code_match = xml or _IN_BATCH.search(text)
        may_pass = bool(code_match and code_match[1] in _CODES_MAY_PASS)
    if _CREDENTIALS.search(text):
        reason = f"no credentials were found ({reason})"
    return " ".join(reason.split())[:_REASON_MAX], may_pass
