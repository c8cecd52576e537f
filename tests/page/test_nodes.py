"""The page of a broker of several nodes."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.page.accessibility import violations
from tests.page.chromium import Chromium
from tests.page.conftest import Open
from tests.process.broker_process import PATIENCE_S
from tests.process.nodes import Nodes

ROWS = "[...document.querySelectorAll('[aria-label=Nodes] tbody tr')].map((row) => row.innerText.replace(/\\s+/g, ' '))"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, chromium: Chromium) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), schemes=["http"]) as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        [made] = admin.create_topics([NewTopic("orders", 7)]).values()
        made.result(PATIENCE_S)
        yield running


def test_the_overview_shows_each_node_and_leads_to_its_page(chromium: Chromium, nodes: Nodes) -> None:
    pages, brokers = nodes.endpoints("http"), nodes.endpoints("kafka")
    partitions = {each["node_id"]: each["partitions"] for each in nodes.call("GET", "/api/v1/cluster")[1]["nodes"]}
    tab = chromium.open(f"http://{pages[1]}/#/")
    shown = tab.until(f"{ROWS}.length === 3 && {ROWS}")
    for node_id, row in enumerate(shown, start=1):
        name = f"{node_id} this page" if node_id == 1 else str(node_id)
        where = f"http {pages[node_id]} kafka {brokers[node_id]}"
        assert f"{name} alive {partitions[node_id]} {where}" == row.strip()
    for scheme in ("light", "dark"):
        tab.scheme(scheme)
        assert [] == violations(tab)
    tab.resize(width=390, height=844, mobile=True)
    tab.until("innerWidth === 390")
    assert tab.run("document.documentElement.scrollWidth") <= 390
    tab.click("[aria-label=Nodes] a")
    deadline = time.monotonic() + PATIENCE_S
    while tab.run("location.host") != pages[2]:  # not in one expression: that would stay in the page that is left
        assert time.monotonic() < deadline
        time.sleep(0.02)
    tab.shows("those of node 2.")
    assert [] == tab.complaints
    tab.close()


def test_what_another_node_has_is_not_taken_for_a_broker_that_is_away(chromium: Chromium, nodes: Nodes) -> None:
    pages = nodes.endpoints("http")
    path = "/api/v1/topics/orders/records?partition={}"
    elsewhere = next(
        each for each in range(7) if nodes.call("GET", path.format(each), at=pages[1], follow=False)[0] == 307
    )
    tab = chromium.open(f"http://{pages[1]}/#/topics/orders/messages?partition={elsewhere}")
    tab.shows("Another node has this.")
    tab.run("location.hash = '#/topics/orders'")
    tab.shows("of these here")
    assert "no answer" not in tab.text()
    assert [] == tab.complaints
    tab.close()


def test_a_node_that_is_away_is_shown_so_until_it_is_back(chromium: Chromium, nodes: Nodes) -> None:
    tab = chromium.open(f"http://{nodes.endpoints('http')[1]}/#/")
    tab.until(f"{ROWS}.length === 3")
    notice = "1 of 3 nodes is away, and being started again."
    deadline = time.monotonic() + PATIENCE_S
    shown: str = ""
    while notice not in shown:  # each time that it ends at once again, it is started later
        assert time.monotonic() < deadline
        with suppress(ProcessLookupError):
            os.kill(nodes.pids()[3], signal.SIGKILL)
        time.sleep(0.05)
        shown, rows = tab.run(f"[document.body.innerText, {ROWS}]")
    assert rows[2].startswith("3 away ")
    tab.until(f"{ROWS}.every((row) => row.includes(' alive ')) && !document.body.innerText.includes({notice!r})")
    assert [] == tab.complaints
    tab.close()


def test_nothing_is_shown_of_a_broker_alone(open_page: Open) -> None:
    tab = open_page("")
    tab.shows("Listeners")
    tab.run("fetch('/api/v1/cluster').then((reply) => reply.json())", awaits=True)
    assert not tab.run("document.querySelector('[aria-label=Nodes]')")
