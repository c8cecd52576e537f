"""What axe-core finds wrong in a page (tests/page/vendor)."""

import json
from pathlib import Path

from tests.page.chromium import Tab

_AXE = (Path(__file__).parent / "vendor" / "axe.js").read_text(encoding="utf-8")
_RUN = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map((each) =>
    `${each.id}: ${each.help}: ` + each.nodes.slice(0, 5).map((node) => node.html.slice(0, 200)).join(" | ")))"""


def violations(tab: Tab) -> list[str]:
    if not tab.run("Boolean(window.axe)"):
        tab.run(f"{_AXE}; 0")
    found = tab.run(_RUN, awaits=True)
    assert isinstance(found, list), json.dumps(found)
    return found
