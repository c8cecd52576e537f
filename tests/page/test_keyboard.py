"""The page without a mouse."""

from tests.page.conftest import Open

FOCUSED = "document.activeElement"
RING = f"getComputedStyle({FOCUSED}).outlineStyle"


def test_tab_moves_visible_focus_to_the_figures(open_page: Open) -> None:
    tab = open_page("topics")
    tab.shows("orders")
    seen = []
    for _ in range(18):
        tab.press("Tab")
        seen.append(tab.run(f"{FOCUSED}.innerText || {FOCUSED}.ariaLabel || {FOCUSED}.placeholder || ''").strip())
        assert "none" != tab.run(RING), seen
    assert "Skip to the figures" == seen[0]
    wanted = ["Broker", "Overview", "Topics", "Events", "Filter topics", "Topic"]
    places = [seen.index(word) for word in wanted]
    assert sorted(places) == places


def test_the_first_stop_skips_the_list_of_views(open_page: Open) -> None:
    tab = open_page("settings")
    tab.shows("differ from their defaults")
    tab.press("Tab", "Enter", "Tab")
    assert tab.run(f"document.querySelector('main').contains({FOCUSED})")
    assert "#/settings" == tab.run("location.hash")


def test_a_view_that_opens_gets_the_focus(open_page: Open) -> None:
    tab = open_page("")
    tab.shows("The broker is healthy.")
    tab.press("g", "r")
    tab.shows("Request channel")
    tab.until(f"{FOCUSED}.tagName === 'H1' && {FOCUSED}.innerText === 'Reactor'")


def test_every_view_has_a_shortcut(open_page: Open) -> None:
    tab = open_page("")
    for key, view in {"t": "topics", "g": "groups", "u": "subscriptions", "s": "settings", "o": ""}.items():
        tab.press("g", key)
        tab.until(f"location.hash === '#/{view}'")


def test_slash_focuses_filter_where_shortcuts_are_off(open_page: Open) -> None:
    tab = open_page("groups")
    tab.shows("billing")
    tab.press("/")
    tab.until(f"{FOCUSED}.matches('[data-filter]')")
    tab.press("g", "t")
    tab.until(f"{FOCUSED}.value === 'gt'")
    assert tab.run("location.hash").startswith("#/groups")


def test_question_mark_lists_shortcuts_and_escape_closes(open_page: Open) -> None:
    tab = open_page("")
    tab.press("?", shift=True)
    tab.shows("Shortcuts", "Filter")
    tab.press("Escape")
    tab.until("!document.querySelector('dialog')")
    tab.press("?", shift=True)
    tab.until("document.querySelector('dialog')")


def test_a_record_opens_with_enter(open_page: Open) -> None:
    tab = open_page("topics/orders/messages?from=start&limit=20")
    tab.shows("20 records.")
    tab.run("document.querySelector('tr.record button').focus()")
    tab.press("Enter")
    tab.until("document.querySelector('tr.record button').ariaExpanded === 'true'")
    tab.shows('"sku": "tea"')
    tab.press(" ")
    tab.until("!document.querySelector('.record-details')")


def test_the_colours_can_be_chosen_and_stay(open_page: Open) -> None:
    tab = open_page("")
    tab.scheme("light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    for name in ("light", "dark"):
        tab.click(".tool")
        tab.until(f"document.querySelector('.tool').ariaLabel === 'Colours: {name}'")
    dark = tab.run(ground)
    assert light != dark
    tab.reload()
    tab.until(f"{ground} === '{dark}'")
    tab.click(".tool")
    tab.until(f"{ground} === '{light}'")


def test_current_view_is_visible_in_row_on_phone(open_page: Open) -> None:
    tab = open_page("settings")
    tab.resize(390, 844, mobile=True)
    tab.reload()
    tab.shows("differ from their defaults")
    row, link = ("document.querySelector('nav" + end + "').getBoundingClientRect()" for end in ("", " [aria-current]"))
    tab.until(f"{row}.left <= {link}.left && {link}.right <= {row}.right")
    tab.press("Tab")
    assert "Skip to the figures" == tab.run(f"{FOCUSED}.innerText").strip()
