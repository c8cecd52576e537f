"""Records the terminal session of the README: runs its commands in a terminal, against a broker of its own, and draws what they
print as an SVG that plays by itself.

    .venv/bin/python docs/record.py      # writes docs/images/session.svg; no service on the network is used

The times are those of this machine, except that typing is shown at the speed of a person and long waits are cut.
"""

import html
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMAGE = Path(__file__).parent / "images" / "session.svg"
# What is typed in the first terminal, where the broker runs, and then in the second.
SERVE = "make run"
COMMANDS = (
    "broker topics create orders --partitions 3",
    "seq 1 200000 | broker produce orders",
    "echo '42:one book' | broker produce orders -K :",
    "broker consume orders --offset -1 --format '%p/%o  %k  %v'",
    "broker topics list",
)
_COLUMNS, _LINE, _CHARACTER, _TOP = 100, 19, 8.4, 44
_KEY_S, _LONGEST_WAIT_S, _LAST_S = 0.03, 1.5, 4.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")

Line = tuple[float, str, str]  # when it appears (s), its style, its text


def run(command: str, environment: dict[str, str], until: str | None = None) -> tuple[list[tuple[float, str]], object]:
    """The lines that a command prints on a terminal, each with the time since its start; and the process."""
    control, side = pty.openpty()
    began = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", command], stdin=side, stdout=side, stderr=side, env=environment, cwd=environment["PWD"]
    )
    os.close(side)
    text, lines = "", []
    while True:
        if select.select([control], [], [], 30)[0]:
            try:
                piece = os.read(control, 65536).decode("utf-8", "replace")
            except OSError:  # Linux's way of saying that the other side has closed
                break
            text += piece
            *whole, text = text.split("\n")
            lines += [(time.monotonic() - began, _CONTROL.sub("", line).rstrip()) for line in whole]
            if until is not None and any(until in line for _, line in lines):
                break
    return lines, process


def session() -> list[Line]:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        environment = {
            **os.environ, "PATH": path, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": str(_COLUMNS),
            "BROKER_BOOTSTRAP_SERVERS": "127.0.0.1:9092", "PWD": directory,
        }  # fmt: skip
        shown: list[Line] = []
        now = typed(shown, 0.5, SERVE)
        lines, broker = run("broker serve", environment, until="Ctrl-C")
        now = printed(shown, now, lines)
        try:
            shown.append((now, "note", "# in another terminal, after `. .venv/bin/activate`"))
            for command in COMMANDS:
                now = typed(shown, now + 0.4, command)
                now = printed(shown, now, run(command, environment)[0])
        finally:
            broker.terminate()  # type: ignore[attr-defined]
            broker.wait()  # type: ignore[attr-defined]
        return shown


def typed(shown: list[Line], now: float, command: str) -> float:
    shown.append((now, "typed", f"$ {command}"))
    return now + _KEY_S * len(command)


def printed(shown: list[Line], now: float, lines: list[tuple[float, str]]) -> float:
    # Events of the log are left out: they would fill the picture.
    lines = [(at, line) for at, line in lines if not re.match(r"\d{4}-\d\d-\d\d", line)]
    last = 0.0
    for at, line in lines:
        now, last = now + min(at - last, _LONGEST_WAIT_S), at
        shown.append((now, "out", line))
    return now


def draw(shown: list[Line]) -> str:
    """Each line appears at its time; the whole begins again after a pause."""
    total = shown[-1][0] + _LAST_S
    height = _TOP + _LINE * len(shown) + 14
    width = round(_COLUMNS * _CHARACTER) + 32
    rows, styles = [], []
    for number, (at, style, line) in enumerate(shown):
        start = 100 * at / total
        styles.append(
            f"@keyframes k{number} {{ 0%, {start:.2f}% {{ opacity: 0 }} {start + 0.01:.2f}%, 100% {{ opacity: 1 }} }}"
            f" .l{number} {{ animation: k{number} {total:.1f}s step-end infinite }}"
        )
        y = _TOP + _LINE * (number + 1) - 5
        rows.append(f'<text class="{style} l{number}" x="16" y="{y}" xml:space="preserve">{html.escape(line)}</text>')
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">
<title id="title">A terminal session: the broker starts, 200,000 records are produced, and one is consumed.</title>
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e6edf3 }}
.typed {{ fill: #7ee787 }} .note {{ fill: #8b949e }}
{chr(10).join(styles)}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none !important; opacity: 1 }} }}
</style>
<rect width="{width}" height="{height}" rx="10" fill="#0d1117"/>
<circle cx="20" cy="20" r="6" fill="#ff5f57"/>
<circle cx="40" cy="20" r="6" fill="#febc2e"/>
<circle cx="60" cy="20" r="6" fill="#28c840"/>
{chr(10).join(rows)}
</svg>
"""


if __name__ == "__main__":
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(draw(session()), "utf-8")
    print(f"wrote {IMAGE}")
