"""Which requests may come from a web page, and are refused."""

import pytest

from broker.http.targets import check
from broker.web.routes import HttpError

ALLOWED = {"broker.example"}


def status(
    headers: dict[str, str], authority: str | None = None, local: str = "192.0.2.1", of_page: bool = False
) -> int:
    try:
        check(headers, authority, local, ALLOWED, of_page=of_page)
    except HttpError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:8080", 200),
        ("LOCALHOST", 200),
        ("127.1.2.3:8080", 200),
        ("[::1]:8080", 200),
        ("[::ffff:127.0.0.1]", 200),
        ("192.0.2.1:8080", 200),
        ("broker.example:8080", 200),
        ("192.0.2.2:8080", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("0.0.0.0:8080", 403),
        ("local host", 400),
        ("", 400),
    ],
)
def test_the_header_host_has_to_name_this_broker(host: str, expected: int) -> None:
    assert expected == status({"host": host})
    assert expected == status({"host": "localhost"}, authority=host)


def test_request_without_host_is_no_browser_s() -> None:
    assert 200 == status({})
    assert 403 == status({"origin": "http://localhost"})


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:8080", 200),
        ("https://LOCALHOST:8080", 200),
        ("http://localhost:8081", 403),
        ("http://localhost", 403),
        ("https://evil.example", 403),
        ("http://localhost:8080.evil.example", 403),
        ("null", 403),
        ("", 403),
        ("file://", 403),
    ],
)
def test_an_origin_has_to_be_this_very_listener(origin: str, expected: int) -> None:
    assert expected == status({"host": "localhost:8080", "origin": origin})


@pytest.mark.parametrize(
    ("site", "expected"), [("none", 200), ("same-origin", 200), ("same-site", 403), ("cross-site", 403), ("?", 403)]
)
def test_browser_s_site_header_can_refuse_a_request(site: str, expected: int) -> None:
    assert expected == status({"host": "localhost", "sec-fetch-site": site})


@pytest.mark.parametrize(
    ("mode", "shown", "of_page", "expected"),
    [
        ("navigate", "document", True, 200),
        ("navigate", "document", False, 403),
        ("navigate", "iframe", True, 403),
        ("cors", "empty", True, 403),
        ("no-cors", "document", True, 403),
    ],
)
def test_links_of_other_sites_lead_to_the_page_only(mode: str, shown: str, of_page: bool, expected: int) -> None:
    headers = {"host": "localhost", "sec-fetch-site": "cross-site", "sec-fetch-mode": mode, "sec-fetch-dest": shown}
    assert expected == status(headers, of_page=of_page)
    assert 403 == status(headers | {"origin": "http://evil.example"}, of_page=of_page)
    assert 403 == status(headers | {"host": "evil.example"}, of_page=of_page)
