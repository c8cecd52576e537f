"""Pages of lists, and numbers in queries."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.network.service import Peer
from broker.network.work import Work
from broker.security.principal import ANONYMOUS
from broker.web.routes import Call, HttpError, limit_of, number_of, page_of


def call(**query: str) -> Call:
    peer = Peer("127.0.0.1", 1, "http", ("127.0.0.1", 2))
    return Call("GET", {}, query, {}, b"", peer, ANONYMOUS, 0.0, Work(lambda: False))


@given(st.sets(st.text(max_size=3), max_size=30), st.integers(1, 7))
def test_pages_have_every_name_once_and_in_order(names: set[str], limit: int) -> None:
    names.discard("")
    found: list[str] = []
    after = ""
    while True:
        page, following = page_of(call(limit=str(limit), after=after), names)
        assert len(page) <= limit
        found += page
        if following is None:
            break
        after = following
    assert sorted(names) == found


@pytest.mark.parametrize("text", ["x", "1.5", "--1", "-", "1" * 40, "٣", "1_0", " 1"])
def test_non_number_is_refused(text: str) -> None:
    with pytest.raises(HttpError, match="offset"):
        number_of(call(offset=text), "offset", least=-5)


@pytest.mark.parametrize(("query", "expected"), [({}, 7), ({"offset": ""}, 7), ({"offset": "-5"}, -5)])
def test_a_number_may_be_left_out(query: dict[str, Any], expected: int) -> None:
    assert expected == number_of(call(**query), "offset", 7, least=-5)


def test_page_has_a_hundred_items_by_default() -> None:
    assert (100, 1000) == (limit_of(call()), limit_of(call(limit="1000")))


def test_a_filter_leaves_the_names_that_contain_it() -> None:
    names = ["Orders", "payments", "old-orders", "order"]
    assert (["Orders", "old-orders"], None) == page_of(call(filter="ORDERS"), names)
    assert (["Orders"], "Orders") == page_of(call(filter="order", limit="1"), names)
    assert (["old-orders", "order"], None) == page_of(call(filter="order", after="Orders"), names)
    assert ([], None) == page_of(call(filter="nothing"), names)
