"""Every view with real traffic: what it shows, that nothing is complained of, and that everybody can read it."""

import re
from typing import Any

import pytest

from tests.page.accessibility import violations
from tests.page.conftest import Open

WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844, "mobile": True}
# What the address says, and what then stands in the page.
VIEWS = {
    "": ("Overview", "The broker is healthy.", "messages in", "Listeners"),
    "topics": ("Topics", "orders", "billing", "payments"),
    "topics/orders": ("orders", "Last stable", "billing", "compression.type", "zstd"),
    "topics/payments": ("held back by 1",),
    "topics/orders/messages": ("Messages", "c-", "50 records, the newest first."),
    "topics/orders/messages?from=tail": ("records since this view was opened", "c-"),
    "groups": ("Groups", "billing", "Stable"),
    "groups/billing": ("billing", "Lag over time", "billing-1", "0–2"),
    "subscriptions": ("Subscriptions", "meters", "Shared"),
    "transactions": ("Transactions", "settlement", "payments", "Partitions that are held back"),
    "shuffle": ("Shuffle", "no credit", "writer waits for its readers"),
    "reactor": ("Reactor", "Acceptor", "Request channel", "Handlers", "billing-1"),
    "requests": ("Requests", "Produce", "Fetch"),
    "settings": ("Settings", "log.dirs", "differ from their defaults"),
    "events": ("Events", "broker_started"),
    "nothing/of/this/name": ("Not found",),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_shows_what_the_broker_does(open_page: Open, view: str) -> None:
    tab = open_page(view)
    tab.shows(*VIEWS[view])
    assert tab.run("document.title").endswith("· Broker")
    assert 1 == tab.run("document.querySelectorAll('h1').length")
    if view.endswith("from=tail"):
        tab.click(".pages button")  # axe-core looks at one state of the page
        tab.shows("Go on")
    for scheme in ("light", "dark"):
        tab.scheme(scheme)
        assert [] == violations(tab)
    tab.resize(width=390, height=844, mobile=True)  # a phone, on which nothing scrolls sideways but tables within
    tab.until("innerWidth === 390")
    assert tab.run("document.documentElement.scrollWidth") <= 390


def test_curves_are_drawn_from_the_history(open_page: Open) -> None:
    """A canvas has the colour of the first curve somewhere once two samples are there."""
    tab = open_page("")
    tab.until("document.querySelectorAll('.plot:not(.blank) canvas').length === 4")
    tab.until(
        """(() => {
            const drawn = document.querySelector(".plot canvas");
            const canvas = document.createElement("canvas");
            Object.assign(canvas, {width: drawn.width, height: drawn.height});
            const context = canvas.getContext("2d", {willReadFrequently: true});
            context.drawImage(drawn, 0, 0);
            const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
            for (let i = 0; i < data.length; i += 4) {
                if (data[i + 3] > 100 && data[i + 2] > 150 && data[i] < 90) return true;
            }
            return false;
        })()"""
    )


@pytest.mark.parametrize("view", ["topics/orders", "groups/billing"])
def test_a_topic_and_a_group_have_curves_too(open_page: Open, view: str) -> None:
    tab = open_page(view)
    tab.until("document.querySelectorAll('.plot:not(.blank)').length === 2")
    tab.until("[...document.querySelectorAll('.chart b')].every((each) => each.innerText !== '–')")


def test_curve_ends_at_the_figure_above_it(open_page: Open) -> None:
    """Although history and overview are asked for at different times."""
    tab = open_page("")
    tab.until("document.querySelectorAll('.plot:not(.blank) canvas').length === 4")
    figure = "[...document.querySelectorAll('.figures div')].find((each) => each.innerText.startsWith('connections')).innerText"
    curve = "[...document.querySelectorAll('figcaption')].find((each) => each.innerText.startsWith('Connections')).innerText"
    shown, drawn = (text.split()[-1] for text in tab.run(f"[{figure}, {curve}]"))
    assert shown == drawn
    # Half of a label, "15:31:30", fits on the right of the last mark.
    edges = "(name) => document.querySelector(name).getBoundingClientRect().right"
    assert tab.run(f"(({edges})('.plot') - ({edges})('.plot .u-over')) >= 25")


@pytest.mark.parametrize(("view", "kind", "size"), [("reactor", "dense", WIDE), ("settings", "stacked", PHONE)])
def test_a_table_is_not_cut(open_page: Open, view: str, kind: str, size: dict[str, Any]) -> None:
    tab = open_page(view)
    tab.shows(*VIEWS[view])
    tab.resize(**size)
    tab.until(f"innerWidth === {size['width']}")
    assert 0 == tab.run(
        f"(() => {{ const it = document.querySelector('.{kind}'); return it.scrollWidth - it.clientWidth; }})()"
    )


def test_figures_move_without_a_reload(open_page: Open) -> None:
    tab = open_page("topics/orders")
    tab.until("document.querySelector('.figures')")
    before = tab.run("document.querySelector('.figures').innerText")
    tab.until(f"document.querySelector('.figures').innerText !== {before!r}")


def test_groups_sort_by_lag_and_click_reverses(open_page: Open) -> None:
    tab = open_page("groups")
    lags = "[...document.querySelectorAll('tbody tr')].map((row) => Number(row.cells[7].innerText.replaceAll(',', '')))"
    found = tab.until(f"{lags}.length > 1 && {lags}")
    assert sorted(found, reverse=True) == found
    tab.run("[...document.querySelectorAll('.sort')].find((each) => each.innerText.startsWith('Lag')).click()")
    tab.until("document.querySelector('th[aria-sort=ascending]')")
    found = tab.run(lags)
    assert sorted(found) == found


def test_filter_runs_in_broker_and_stays_in_address(open_page: Open) -> None:
    tab = open_page("topics")
    tab.shows("clicks-00")
    tab.click("[data-filter]")
    tab.press(*"ORD")
    tab.until("document.querySelectorAll('tbody tr').length === 1")
    assert "#/topics?filter=ORD" == tab.run("location.hash")
    tab.press(*"xyz")
    tab.shows("No topic has this in its name.")


def test_changed_settings_come_first_others_on_demand(open_page: Open) -> None:
    tab = open_page("topics/orders")
    tab.shows("2 of")
    assert ["compression.type", "retention.ms"] == tab.run(
        "[...document.querySelectorAll('tr.changed code')].map((each) => each.innerText)"
    )
    tab.click(".choice input")
    tab.shows("segment.bytes")


def test_records_are_chosen_by_partition_offset_and_end(open_page: Open) -> None:
    tab = open_page("topics/orders/messages?partition=1&from=offset&at=5&until=offset&end=9&limit=20")
    tab.shows("5 records.")
    cells = "[...document.querySelectorAll('tr.record')].map((row) => [1, 0].map((at) => row.cells[at].innerText))"
    found = [(int(partition), int(re.sub(r"\D", "", offset))) for partition, offset in tab.run(cells)]
    assert [(1, offset) for offset in range(5, 10)] == found


def test_records_are_chosen_by_key(open_page: Open) -> None:
    tab = open_page("topics/orders/messages?from=start&key=c-5&limit=20")
    tab.until("document.querySelectorAll('tr.record').length > 0")
    keys = tab.run("[...new Set([...document.querySelectorAll('tr.record')].map((row) => row.cells[3].innerText))]")
    assert ["c-5"] == keys


def test_form_leads_to_an_equivalent_address(open_page: Open) -> None:
    tab = open_page("topics/orders/messages")
    tab.shows("50 records, the newest first.")
    tab.run(
        """(() => {
            const from = [...document.querySelectorAll("form select")][1];
            from.value = "start";
            from.dispatchEvent(new Event("change"));
        })()"""
    )
    tab.click("form button[type=submit]")
    tab.until("location.hash.includes('from=start')")
    tab.shows("50 records.")
    tab.click(".pages button")
    tab.shows("100 records.")


def test_the_tail_can_be_paused(open_page: Open) -> None:
    tab = open_page("topics/orders/messages?from=tail")
    tab.until("document.querySelectorAll('tr.record').length > 5")
    tab.click(".pages button")
    tab.shows("Go on")
    shown = tab.run("document.querySelector('tr.record').innerText")
    tab.run("new Promise((done) => setTimeout(done, 600))", awaits=True)
    assert shown == tab.run("document.querySelector('tr.record').innerText")
    tab.click(".pages button")
    tab.until(f"document.querySelector('tr.record').innerText !== {shown!r}")
