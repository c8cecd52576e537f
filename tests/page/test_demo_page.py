"""docs/examples/demo_page.py, which `make demo-page` runs: it shows what it says, and leaves nothing running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.test_floors import ROOT

PATIENCE_S = 90.0


def processes_of(session: int) -> list[str]:
    """The command lines of all processes that were started in this session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((stat.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


def ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}api/v1/{path}", timeout=30) as reply:
        return json.load(reply)


def test_demo_shows_slow_group_and_ends_at_signal(tmp_path: Path) -> None:
    script = str(ROOT / "docs" / "examples" / "demo_page.py")
    demo = subprocess.Popen(
        [sys.executable, script, "--port", "0", "--without-spark"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert demo.stdout is not None
        match = re.search(r"http://\S+/", demo.stdout.readline())
        assert match is not None
        deadline = time.monotonic() + PATIENCE_S
        while True:
            groups = {each["group"]: each for each in ask(match[0], "groups")["groups"]}
            topics = {each["name"] for each in ask(match[0], "topics")["topics"]}
            billing = groups.get("billing", {"members": 0, "lag": 0})
            if billing["members"] == 2 and billing["lag"] and {"orders", "clicks", "payments", "lines"} <= topics:
                break
            assert time.monotonic() < deadline, (groups, topics)
            time.sleep(0.1)
        demo.send_signal(signal.SIGINT)
        assert "Ending." in demo.stdout.read()
        assert 0 == demo.wait(PATIENCE_S)
        assert [] == processes_of(demo.pid)
        assert [] == list(tmp_path.iterdir())
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
            demo.wait()
        if demo.stdout is not None:
            demo.stdout.close()
