"""The screenshots of docs/PAGE.md. `make screenshots` writes them anew, from the demo after some minutes; else they are taken of
the tests' own broker and only looked at: each is a picture with something in it, and small enough to be kept in a repository.
"""

import os
import re
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page.chromium import Chromium
from tests.test_floors import ROOT

MAX_BYTES = 100_000  # of a picture in docs/
BUSY_MAX_BYTES = 150_000  # of a picture of the tests' own broker, which has more to show than a quiet one
WIDE = {"width": 1080, "height": 660}
PHONE = {"width": 390, "height": 844, "mobile": True}
# Name -> view, scheme, size, and the words that are there when all is drawn.
PICTURES = {
    "overview": ("", "light", WIDE, "Listeners"),
    "overview-phone": ("", "dark", PHONE, "Messages in"),
    "topics": ("topics", "light", WIDE, "billing"),
    "group": ("groups/billing", "dark", WIDE, "Lag over time"),
    "messages": ("topics/orders/messages", "light", WIDE, "the newest first"),
    "reactor": ("reactor", "light", WIDE, "Request channel"),
    "shuffle": ("shuffle", "dark", WIDE, "result partitions"),
}
# Samples that the curves have before the docs' pictures are taken: three minutes.
SETTLED = 36


@pytest.fixture(scope="module")
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if "BROKER_SCREENSHOTS" not in os.environ:
        yield f"http://{request.getfixturevalue('broker').addresses['http']}"
        return
    command = [sys.executable, str(ROOT / "docs" / "examples" / "demo_page.py"), "--port", "0", "--without-spark"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            match = re.search(r"http://[^/]+", demo.stdout.readline())
            assert match is not None
            yield match[0]
        finally:
            demo.send_signal(signal.SIGTERM)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_something_and_is_small(chromium: Chromium, address: str, screenshots: Path, name: str) -> None:
    view, scheme, size, words = PICTURES[name]
    tab = chromium.open(f"{address}/#/{view}", **size)
    tab.scheme(scheme)
    tab.shows(words)
    if "BROKER_SCREENSHOTS" in os.environ:
        history = "fetch('/api/v1/history').then((reply) => reply.json()).then((all) => all.series.requests.length)"
        while tab.run(history, awaits=True) < SETTLED:
            tab.run("new Promise((done) => setTimeout(done, 5000))", awaits=True)
        tab.reload()
        tab.shows(words)
    tab.until("!document.querySelector('.plot.blank')")  # a curve is on its way, or will never come
    tab.run("document.activeElement?.blur()")
    tab.run("new Promise((done) => setTimeout(done, 700))", awaits=True)  # what is drawn after the text
    if name == "messages":
        tab.click("tr.record:nth-child(2) button")
        tab.until("document.querySelector('.json')")
        tab.run("scrollTo(0, 0)")
    path = screenshots / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path)
    tab.close()
    data = path.read_bytes()
    assert (size["width"], size["height"]) == struct.unpack(">II", data[16:24])
    assert 10_000 < len(data) < (MAX_BYTES if "BROKER_SCREENSHOTS" in os.environ else BUSY_MAX_BYTES)
    assert 10_000 < (ROOT / "docs" / "page" / f"{name}.png").stat().st_size < MAX_BYTES
    assert zlib.crc32(data[12:29]) == int.from_bytes(data[29:33], "big")  # it is a whole PNG
    assert [] == tab.complaints
