"""The page's files, asked for as browsers and as attackers ask. How the page works in a browser: tests/page."""

import gzip
import http.client
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.embedded import Broker
from broker.http.page.routes import routes
from tests.loops import loop_over
from tests.test_floors import ROOT

PAGE = ROOT / "broker" / "http" / "page"
PATHS = [route.pattern for route in routes()]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker(listeners=["http://127.0.0.1:0"]) as broker:
        yield broker.address("http")


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply, body


@loop_over("path", PATHS)
def test_files_have_their_type_and_strict_policy(address: str, path: str) -> None:
    reply, body = ask(address, path)
    assert 200 == reply.status
    suffix = Path(path).suffix if path not in ("/", "/favicon.ico") else {"/": ".html", "/favicon.ico": ".svg"}[path]
    types = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    assert types[suffix] == reply.headers["content-type"].partition(";")[0]
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "nosniff" == reply.headers["x-content-type-options"]
    assert ["no-cache"] == reply.headers.get_all("cache-control")
    names = {"/": "index.html", "/favicon.ico": "favicon.svg"}
    name = names.get(path, path.removeprefix("/page/"))
    folder = PAGE if name.startswith("vendor/") else PAGE / "static"
    assert (folder / name).read_bytes() == body


def test_page_files_are_served_but_licences_are_not(address: str) -> None:
    static = {f"/page/{path.relative_to(PAGE / 'static')}" for path in (PAGE / "static").rglob("*.*")}
    vendor = {f"/page/vendor/{path.name}" for path in (PAGE / "vendor").glob("*.?s*")}
    assert static | vendor | {"/", "/favicon.ico"} == set(PATHS)
    assert 404 == ask(address, "/page/vendor/LICENSE.uplot")[0].status


def test_index_has_nothing_inline_or_from_elsewhere() -> None:
    index = (PAGE / "static" / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=)", index) == []
    assert re.findall(r" on\w+=| style=|<style|//", index) == []
    for target in re.findall(r'(?:src|href)="([^"]*)"', index):
        assert target in PATHS


@loop_over("path", PATHS)
def test_cached_file_is_not_sent_again(address: str, path: str) -> None:
    tag = ask(address, path)[0].headers["etag"]
    reply, body = ask(address, path, if_none_match=f'"other", W/{tag}')
    assert (304, b"", tag) == (reply.status, body, reply.headers["etag"])
    assert reply.headers["content-length"] is None
    assert 200 == ask(address, path, if_none_match='"other"')[0].status
    assert 304 == ask(address, path, if_none_match="*")[0].status


def test_gzip_form_has_its_own_tag(address: str) -> None:
    plain, content = ask(address, "/page/main.js")
    reply, body = ask(address, "/page/main.js", accept_encoding="br, GZIP")
    assert "gzip" == reply.headers["content-encoding"]
    assert content == gzip.decompress(body)
    assert plain.headers["etag"] != reply.headers["etag"]
    assert "accept-encoding" == reply.headers["vary"] == plain.headers["vary"]
    # The tag of the other form is not one of this.
    assert 200 == ask(address, "/page/main.js", if_none_match=reply.headers["etag"])[0].status
    refused, body = ask(address, "/page/main.js", accept_encoding="gzip;q=0")
    assert (None, content) == (refused.headers["content-encoding"], body)


def test_a_head_tells_the_size_and_sends_nothing(address: str) -> None:
    reply, body = ask(address, "/", "HEAD")
    assert (200, b"") == (reply.status, body)
    assert int(reply.headers["content-length"]) == (PAGE / "static" / "index.html").stat().st_size


@pytest.mark.parametrize(
    "path",
    [
        "/page/../../../../etc/passwd",
        "/page/%2e%2e/routes.py",
        "/page/..%2froutes.py",
        "/page/vendor/../../routes.py",
        "/page/vendor/..%2F..%2Froutes.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/main.js%00.html",
        "/page/main.js/..",
        "/page/",
        "/page/views/",
        "/page/routes.py",
        "/page/__init__.py",
        "/page/..\\routes.py",
        "/page/" + "../" * 2000,
    ],
)
def test_no_path_leads_out_of_the_page(address: str, path: str) -> None:
    assert ask(address, path)[0].status == 404


def test_other_methods_are_refused(address: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert 405 == ask(address, "/", method)[0].status


def test_a_page_of_another_site_cannot_read_it(address: str) -> None:
    assert 403 == ask(address, "/", host="evil.example")[0].status
    assert 403 == ask(address, "/", origin="http://evil.example")[0].status


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make wheel` builds it, without a network: the build's own requirements are not installed anew."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel and is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(folder.glob("*.whl"))


def test_the_wheel_has_the_files_and_the_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix("broker/http/page/") for name in archive.namelist() if "/http/page/" in name}
    here = {str(path.relative_to(PAGE)) for path in PAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert here == packed
    assert {"vendor/LICENSE.uplot", "vendor/LICENSE.htm", "vendor/LICENSE.preact", "vendor/README.md"} <= packed


def test_page_is_served_from_a_packed_wheel(wheel: Path) -> None:
    """So no file system path of the source tree is used: everything comes through the package."""
    program = "from broker.http.page.routes import routes; print(*(route.pattern for route in routes()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=wheel.parent,
        env={"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert PATHS == done.stdout.split()
