"""Headless Chromium, driven over a pipe by the DevTools protocol: no driver to install, and no port.

``Chromium`` is the process and ``Tab`` one page in it. A tab remembers everything that a browser complains about: exceptions,
errors on the console, violations of the Content-Security-Policy. ``until`` waits in the page, not by sleeping here.

One thread at a time.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Far longer than anything takes.
PATIENCE_S = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--lang=en",
    "--mute-audio",
    "--no-pings",
)
# Chromium reads commands from descriptor 3 and writes to 4.
_START = """
import os, sys
from fcntl import F_DUPFD, fcntl
ends = [fcntl(int(each), F_DUPFD, 10) for each in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""
# Of keys that type nothing: their code, and the number by which browsers know them.
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, " ": 32}


def find() -> str | None:
    """The path of a Chromium; BROKER_TEST_CHROMIUM names another than the usual ones."""
    chosen = os.environ.get("BROKER_TEST_CHROMIUM")
    return shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, _NAMES)), None)


class Chromium:
    def __init__(self, path: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="page-test-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [path, *_OPTIONS, *sandbox, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(to_browser), str(from_browser), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_browser, from_browser),
            start_new_session=True,
            env={**os.environ, "TZ": "UTC"},
        )
        os.close(to_browser)
        os.close(from_browser)
        self._received = bytearray()
        self._last_id = 0
        self._tabs: dict[str, Tab] = {}

    def open(self, url: str, **size: Any) -> "Tab":
        """A new tab that shows this address. Nothing has been waited for."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = self._tabs[session] = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Audits", "Network"):
            tab.call(f"{domain}.enable")
        tab.resize(**size)
        tab.go(url)
        return tab

    def call(self, method: str, parameters: Any = None, session: str | None = None) -> Any:
        """What the browser answers. AssertionError if it refuses."""
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": parameters or {}}
        if session is not None:
            command["sessionId"] = session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._last_id:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message)

    def listen(self) -> None:
        """Wait for one event."""
        self._note(self._next())

    def _next(self) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._received += data
        message, _, rest = self._received.partition(b"\0")
        self._received = rest
        return json.loads(message)

    def _note(self, message: Any) -> None:
        tab = self._tabs.get(message.get("sessionId", ""))
        if tab is not None:
            tab.note(message["method"], message["params"])

    def forget(self, session: str) -> None:
        del self._tabs[session]

    def close(self) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # what it has started, too
            except ProcessLookupError:
                pass
            self._process.wait()
            os.close(self._read)
            os.close(self._write)
            shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Tab:
    """``allowed``: parts of complaints that a test expects."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.allowed: list[str] = []
        self._complaints: list[str] = []
        self._loads = 0

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, parameters, self._session)

    def note(self, method: str, params: Any) -> None:
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self._complaints.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self._complaints.append(
                " ".join(str(each.get("value", each.get("description"))) for each in params["args"])
            )
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self._complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Audits.issueAdded" and params["issue"]["code"] == "ContentSecurityPolicyIssue":
            self._complaints.append(json.dumps(params["issue"]))

    @property
    def complaints(self) -> list[str]:
        """What went wrong in the page, in the order in which it did, besides what is allowed."""
        return [each for each in self._complaints if not any(part in each for part in self.allowed)]

    # -- where ----------------------------------------------------------------------------------------------------------

    def go(self, url: str) -> None:
        answer = self.call("Page.navigate", url=url)
        assert not answer.get("errorText"), answer

    def reload(self) -> None:
        """As the browser's button does. Waits until it is there again."""
        before = self._loads
        self.call("Page.reload")
        while self._loads == before:
            self._browser.listen()

    def resize(self, width: int = 1280, height: int = 800, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def scheme(self, name: str) -> None:
        """``light`` or ``dark``, as the system has it."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def close(self) -> None:
        self._browser.call("Target.closeTarget", {"targetId": self._target})
        self._browser.forget(self._session)

    # -- what -----------------------------------------------------------------------------------------------------------

    def run(self, expression: str, *, awaits: bool = False) -> Any:
        """The value of an expression in the page, as JSON. AssertionError if it throws."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=awaits)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> Any:
        """Wait until the expression is true, and its value then. Looks again 20 times a second, in the page."""
        found = self.run(
            f"""new Promise((done) => {{
                const end = performance.now() + {PATIENCE_S * 800};
                const look = () => {{
                    let value = null;
                    try {{ value = {condition}; }} catch {{ /* not there yet */ }}
                    if (value || performance.now() > end) done(value instanceof Node || value || null);
                    else setTimeout(look, 50);
                }};
                look();
            }})""",
            awaits=True,
        )
        assert found, f"never true: {condition}\n{self.text()[:3000]}\n{self.complaints}"
        return found

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def shows(self, *words: str) -> None:
        """Wait until all of these words stand in the page."""
        for word in words:
            self.until(f"document.body.innerText.includes({json.dumps(word)})")

    def click(self, selector: str) -> None:
        """As with a mouse, in the middle of the first such element, once it is there."""
        place = self.until(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{block: "center"}});
                const box = element.getBoundingClientRect();
                return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, *keys: str, shift: bool = False) -> None:
        for key in keys:
            number = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
            typed = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            about = {"key": key, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
            self.call("Input.dispatchKeyEvent", type="keyDown" if typed else "rawKeyDown", text=typed, **about)
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        path.write_bytes(base64.b64decode(data))
