"""A broker that stops and comes back, one that has no stream left, and one that wants to know who asks."""

import http.client
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.client.embedded import Broker
from broker.http.streams import STREAMS_MAX
from tests.page.accessibility import violations
from tests.page.chromium import Chromium
from tests.process.broker_process import BrokerProcess


def test_page_reports_absent_broker_and_recovers(chromium: Chromium, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, listener="http://127.0.0.1:0", more_listeners=["kafka://127.0.0.1:0"]) as broker:
        tab = chromium.open(f"http://{broker.address}/#/settings")
        tab.allowed += ["net::ERR_", "Failed to load resource"]
        tab.shows("log.dirs", "healthy")
        broker.stop()
        tab.shows("The broker has not answered for", "no answer")
        assert "log.dirs" in tab.text()  # what was known stays
        assert [] == violations(tab)
        tab.run("location.hash = '#/topics'")
        tab.shows("There is nothing to show yet.")
        broker.start()
        tab.shows("healthy", "There are no topics.")
        tab.until("!document.body.innerText.includes('has not answered')")
        assert [] == tab.complaints
        tab.close()


def test_a_page_that_gets_no_stream_asks_instead(chromium: Chromium) -> None:
    with Broker(listeners=["kafka://127.0.0.1:0", "http://127.0.0.1:0"]) as broker, ExitStack() as stack:
        address = broker.address("http")
        for _ in range(STREAMS_MAX):
            connection = http.client.HTTPConnection(address, timeout=60)
            stack.callback(connection.close)
            connection.request("GET", "/api/v1/live")
            assert 200 == connection.getresponse().status
        tab = chromium.open(f"http://{address}/#/")
        tab.allowed.append("the server responded with a status of 503")
        tab.shows("healthy", "The broker is healthy.")
        tab.run("location.hash = '#/reactor'")
        tab.shows("Request channel", "Nothing backs up")
        assert [] == tab.complaints
        tab.close()


@pytest.fixture
def secured(tmp_path: Path) -> Broker:
    return Broker(listeners=["kafka+sasl://127.0.0.1:0", "http://127.0.0.1:0"], sasl_enabled_mechanisms="PLAIN")


def test_page_answers_a_broker_that_wants_credentials(chromium: Chromium, secured: Broker) -> None:
    with secured:
        secured.add_user("ada", "päss word")
        tab = chromium.open(f"http://{secured.address('http')}/#/settings")
        tab.allowed.append("Failed to load resource: the server responded with a status of 401")
        tab.shows("Log in", "User", "Password")
        assert [] == violations(tab)
        tab.click("input[name=user]")
        tab.press(*"ada", "Tab", *"wrong", "Enter")
        tab.shows("The broker has not accepted this.")
        tab.run("document.querySelector('form').reset()")
        tab.click("input[name=user]")
        tab.press(*"ada", "Tab", *"päss word", "Enter")
        tab.shows("log.dirs", "healthy")
        # Nobody can find it there later.
        assert "{}" == tab.run("JSON.stringify({...localStorage, ...sessionStorage})")
        assert "" == tab.run("document.cookie")
        tab.close()
        assert [] == tab.complaints
