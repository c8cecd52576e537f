"""The routes of the page: ``/``, ``/favicon.ico``, and a route for each file under ``/page/``.

The files are read, compressed and hashed once, when the HTTP service is assembled. A request is answered from memory,
on its connection's processor. Each file has a route of its own, so no part of a request ever becomes a path of the file
system.

The page shows data of producers, which may be hostile. It inserts everything as text; the Content-Security-Policy is
the second line of defence: no scripts but these files, and (``require-trusted-types-for``) no text that becomes HTML.
"""

import gzip
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Final

import attrs

from broker.runtime.files import read_packaged
from broker.web.routes import Answer, Call, Route

NOT_MODIFIED: Final = 304
_INDEX: Final = "index.html"
_ICON: Final = "favicon.svg"
# Other files, such as licences, are not served.
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_SAFETY: Final = (
    ("content-security-policy", _POLICY),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
)


def routes() -> list[Route]:
    """Raises OSError if files of the package cannot be read."""
    files = dict(_files())
    paths = {f"/page/{path}": file for path, file in files.items()}
    paths |= {"/": files[_INDEX], "/favicon.ico": files[_ICON]}
    return [Route("GET", path, file.answer, blocking=False) for path, file in paths.items()]


def _files() -> Iterator[tuple[str, "File"]]:
    for folder, before in (("static", ""), ("vendor", "vendor/")):
        for path, content in read_packaged("broker.http.page", folder).items():
            content_type = _TYPES.get(path[path.rfind(".") :])
            if content_type is not None:
                yield before + path, File(content, content_type)


@attrs.frozen
class _Form:
    """A file as it is sent, plain or compressed. Each form has its own tag, as caches need it."""

    body: bytes
    tag: str
    headers: tuple[tuple[str, str], ...]


class File:
    """One file, plain and compressed."""

    def __init__(self, content: bytes, content_type: str) -> None:
        tag = sha256(content).hexdigest()[:16]
        self._content_type = content_type
        self._plain = _form(content, f'"{tag}"')
        # Without a time, so that the bytes are the same in every broker.
        self._compressed = _form(gzip.compress(content, 9, mtime=0), f'"{tag}-gzip"', ("content-encoding", "gzip"))

    def answer(self, call: Call) -> Answer:
        form = self._compressed if _takes_gzip(call.headers) else self._plain
        if _has(call.headers, form.tag):
            return Answer(NOT_MODIFIED, headers=form.headers)
        return Answer(200, form.body, self._content_type, form.headers)


def _form(body: bytes, tag: str, *headers: tuple[str, str]) -> _Form:
    # no-cache: a browser may keep the file, but revalidates it each time.
    always = (("cache-control", "no-cache"), ("etag", tag), ("vary", "accept-encoding"))
    return _Form(body, tag, (*always, *_SAFETY, *headers))


def _takes_gzip(headers: Mapping[str, str]) -> bool:
    """Whether the client accepts gzip explicitly; in doubt it gets the plain file."""
    codings = headers.get("accept-encoding", "").lower().split(",")
    return "gzip" in (coding.strip() for coding in codings)


def _has(headers: Mapping[str, str], tag: str) -> bool:
    """Whether the client has this form already, by its If-None-Match header."""
    known = [each.strip().removeprefix("W/") for each in headers.get("if-none-match", "").split(",")]
    return tag in known or known == ["*"]
