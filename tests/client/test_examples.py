"""The examples in docs/examples, and those of docs/TESTING.md that stand alone, do what they say."""

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from broker.client import Broker

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_words_are_counted_as_a_counter_would() -> None:
    example = load("word_count")
    with Broker() as broker:
        counts = example.word_count(broker.shuffle_address)
    expected = Counter(word for text in example.TEXT for word in re.findall(r"\w+", text.lower()))
    assert expected.total() > 50_000
    assert expected == sum(counts, Counter())
    words = [set(count) for count in counts]
    assert not (words[0] & words[1] or words[0] & words[2] or words[1] & words[2]), "a word came to two readers"


def test_slow_reader_stalls_nobody_else() -> None:
    example = load("slow_reader")
    with Broker(shuffle_pipelined_bytes=4 * 1024 * 1024) as broker:
        held_back, received = example.slow_reader(broker.shuffle_address)
    assert held_back
    assert [example.BUFFERS * len(example.PAYLOAD)] * example.READERS == received


def test_example_runs_as_a_script() -> None:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "word_count.py")], capture_output=True, text=True, check=True, timeout=120
    )
    assert re.search(r"^the \d+", result.stdout, re.MULTILINE), result.stdout


@pytest.mark.parametrize(
    ("heading", "least"),
    [("## The broker in a test\n", 2), ("### Faults that change the broker\n", 3), ("## Checkers\n", 1)],
)
def test_guide_to_testing_does_what_it_says(heading: str, least: int) -> None:
    text = (DOCS / "TESTING.md").read_text("utf-8")
    section = text.partition(heading)[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= least
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/TESTING.md", "exec"), names)
