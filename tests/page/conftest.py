"""A broker in a process of its own with real clients, and a browser: one of each for all tests of the page."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.chromium import Chromium, Tab, find
from tests.page.traffic import Traffic
from tests.process.broker_process import BrokerProcess

LISTENERS = ("http://127.0.0.1:0", "shuffle://127.0.0.1:0", "pulsar://127.0.0.1:0")
Open = Callable[..., Tab]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Chromium]:
    path = find()
    if path is None:
        pytest.skip("Chromium is not installed (Debian's package chromium; BROKER_TEST_CHROMIUM names another)")
    with Chromium(path) as browser:
        yield browser


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory, chromium: Chromium) -> Iterator[BrokerProcess]:
    """``chromium`` comes first: without it nothing needs a broker."""
    with BrokerProcess(tmp_path_factory.mktemp("page"), more_listeners=LISTENERS) as process:
        addresses = process.addresses
        with Traffic(addresses["kafka"], addresses["shuffle"], addresses["pulsar"]):
            yield process


@pytest.fixture
def open_page(chromium: Chromium, broker: BrokerProcess) -> Iterator[Open]:
    """Opens the page at a hash. In the end nothing may have been complained of, but what the test allows."""
    tabs: list[Tab] = []

    def open_tab(view: str = "", **size: Any) -> Tab:
        tab = chromium.open(f"http://{broker.addresses['http']}/#/{view}", **size)
        tabs.append(tab)
        tab.until("document.querySelector('h1')")
        return tab

    yield open_tab
    for tab in tabs:
        tab.close()
    assert [] == [complaint for tab in tabs for complaint in tab.complaints]


@pytest.fixture(scope="package")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are written: for the docs by `make screenshots`, else where nobody keeps them."""
    chosen = os.environ.get("BROKER_SCREENSHOTS")
    return Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
