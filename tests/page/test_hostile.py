"""What producers and clients send is text in the page, however it looks and however long it is."""

from tests.page.conftest import Open
from tests.page.traffic import HOSTILE_GROUP, HUGE_BYTES, LONG_NUMBER, MARKUP

UNTOUCHED = "!document.querySelector('main script, main img') && document.title !== 'taken'"


def test_markup_in_keys_values_and_headers_is_text(open_page: Open) -> None:
    tab = open_page("topics/strange/messages?from=start")
    tab.shows("8 records.")
    tab.run("document.querySelectorAll('tr.record button').forEach((each) => each.click())")
    tab.until("document.querySelectorAll('.record-details').length === 8")
    tab.shows(MARKUP)
    assert tab.run(UNTOUCHED)


def test_markup_in_a_name_is_shown_as_text(open_page: Open) -> None:
    tab = open_page("groups")
    tab.until("document.querySelectorAll('tbody a').length > 1")
    tab.click("tbody a[title^='group ']")
    tab.until("location.hash !== '#/groups' && document.querySelector('h1').innerText !== 'Groups'")
    tab.shows("strange")
    assert HOSTILE_GROUP == tab.run("document.querySelector('h1').innerText")
    assert tab.run(UNTOUCHED)


def test_markup_in_the_address_is_text(open_page: Open) -> None:
    tab = open_page("topics/%3Cimg%20src=x%20onerror=%22document.title='taken'%22%3E")
    tab.allowed.append("the server responded with a status of 404")
    tab.shows("<img src=x onerror")
    assert tab.run(UNTOUCHED)
    tab.run("location.hash = '#/topics/%E0%A4%A'")  # no valid escape
    tab.shows("%E0%A4%A")


def test_huge_value_is_cut_and_page_goes_on(open_page: Open) -> None:
    tab = open_page("topics/strange/messages?from=start")
    tab.shows("8 records.")
    tab.run("document.querySelectorAll('tr.record button').forEach((each) => each.click())")
    tab.shows("Only the beginning is shown.")
    assert tab.run("document.body.innerText.length") < HUGE_BYTES
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")


def test_number_that_javascript_would_round_stays_exact(open_page: Open) -> None:
    tab = open_page("topics/strange/messages?from=start")
    tab.shows("8 records.")
    tab.run("document.querySelectorAll('tr.record button')[2].click()")
    tab.until("document.querySelector('.json')")
    shown = tab.run("document.querySelectorAll('.json')[0].innerText")
    assert f'{{\n  "id": {LONG_NUMBER},\n' in shown
    assert '"list": [\n    1.5,\n    true,\n    []\n  ]\n}' in shown


def test_bytes_without_text_are_shown_in_hex(open_page: Open) -> None:
    tab = open_page("topics/strange/messages?from=start")
    tab.shows("8 records.", "ff 00 01")
    tab.run("document.querySelectorAll('tr.record button')[1].click()")
    tab.shows("000020  20 21 22")


def test_policy_forbids_injected_scripts(open_page: Open) -> None:
    """The second line of defence, seen to hold: the browser refuses both."""
    tab = open_page("")
    tab.allowed += ["TrustedHTML", "Content Security Policy", "ContentSecurityPolicyIssue"]
    refused = tab.run(
        """(() => {
            try { document.querySelector("main").innerHTML = "<b>x</b>"; return false; } catch { return true; }
        })()"""
    )
    assert refused
    tab.run("document.body.append(Object.assign(document.createElement('style'), {textContent: 'main{display:none}'}))")
    assert "none" != tab.run("getComputedStyle(document.querySelector('main')).display")
