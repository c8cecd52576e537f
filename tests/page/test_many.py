"""More topics than one page of a list has."""

from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from broker.client.embedded import Broker
from tests.page.chromium import Chromium, Tab

TOPICS = 230
ROWS = "[...document.querySelectorAll('tbody a')].map((each) => each.innerText)"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Broker(listeners=["kafka://127.0.0.1:0", "http://127.0.0.1:0"]) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        admin.create_topics([NewTopic(f"t-{number:03}", 1, 1) for number in range(TOPICS)])
        admin.close()
        yield broker.address("http")


@pytest.fixture
def tab(chromium: Chromium, address: str) -> Iterator[Tab]:
    made = chromium.open(f"http://{address}/#/topics")
    made.until(f"{ROWS}.length === 100")
    yield made
    assert [] == made.complaints
    made.close()


def test_list_is_paged_by_a_hundred_both_ways(tab: Tab) -> None:
    assert [f"t-{number:03}" for number in range(100)] == tab.run(ROWS)
    tab.shows("Page 1, 100 rows.")
    for first, rows in ((100, 100), (200, 30)):
        tab.click(".pages button:last-child")
        tab.until(f"{ROWS}[0] === 't-{first}'")
        assert rows == tab.run(f"{ROWS}.length")
    assert tab.run("document.querySelector('.pages button:last-child').disabled")
    tab.click(".pages button")
    tab.until(f"{ROWS}[0] === 't-100'")


def test_filter_searches_all_items_from_first_page(tab: Tab) -> None:
    tab.click(".pages button:last-child")
    tab.until(f"{ROWS}[0] === 't-100'")
    tab.press("/", *"T-22")
    tab.until(f"{ROWS}.length === 10")
    assert [f"t-{number}" for number in range(220, 230)] == tab.run(ROWS)
    assert not tab.run("document.querySelector('.pages')")
