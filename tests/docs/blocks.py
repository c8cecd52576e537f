"""The code blocks of a document, and what the test of documents is told about them in comments that no reader sees.

A comment on the line before a block, ``<!-- test: WORDS -->``, says how the block is run:

    skip: REASON     it is not run
    background       it runs until the document's last block has run; the next block waits until it prints a line that
                     ``until=TEXT`` is part of
    pytest           it is a file of tests

A block of ``text`` right after one of ``sh`` or ``python`` is what that one prints; ``...`` stands for anything.
"""

import re
from pathlib import Path

import attrs

_BLOCK = re.compile(
    r"(?:<!-- test: (?P<how>.*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$(?P<after>\n*)",
    re.DOTALL | re.MULTILINE,
)


@attrs.define
class Block:
    where: str
    language: str
    text: str
    how: str = ""
    expected: str | None = None

    @property
    def skipped(self) -> str | None:
        """Why it is not run."""
        return self.how.partition("skip:")[2].strip() or None

    @property
    def until(self) -> str | None:
        return self.how.partition("until=")[2] or None if self.how.startswith("background") else None


def blocks(document: Path) -> list[Block]:
    """Every block of shell, Python and SQL, in order."""
    text = document.read_text("utf-8")
    found: list[Block] = []
    previous_end = -1
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        if match["language"] == "text" and match.start() == previous_end and found:
            found[-1].expected = match["text"]
        elif match["language"] in ("sh", "python", "sql"):
            found.append(Block(f"{document.name}:{line}", match["language"], match["text"], match["how"] or ""))
        previous_end = match.end() if match["language"] in ("sh", "python") else -1
    return found


def printed_as_expected(expected: str, printed: str) -> bool:
    lines = [re.escape(line.rstrip()).replace(re.escape("..."), ".*") for line in expected.strip().splitlines()]
    return (
        re.fullmatch("\n".join(lines), "\n".join(line.rstrip() for line in printed.strip().splitlines()), re.DOTALL)
        is not None
    )
