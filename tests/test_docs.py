"""What documents say about settings and APIs is made from the code; here it is checked that somebody has made it again."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_up_to_date(generate: ModuleType) -> None:
    assert [] == [path.name for path in generate.outdated()], "run `make docs`"


def test_settings_of_the_broker_are_all_listed() -> None:
    from broker.config import BrokerConfig, setting_infos

    text = (DOCS / "SETTINGS.md").read_text("utf-8")
    assert [] == [info.name for info in setting_infos(BrokerConfig) if f"`{info.name}`" not in text]


def test_a_stale_part_is_noticed(generate: ModuleType) -> None:
    document = "# Settings\n<!-- generated: topic-settings -->\nlong ago\n<!-- end -->\nby hand\n"
    rendered = generate.render(document)
    assert "long ago" not in rendered
    assert "| `cleanup.policy` |" in rendered
    assert rendered.endswith("<!-- end -->\nby hand\n")
    assert rendered == generate.render(rendered)


def test_bounds_have_the_figures_of_the_code(generate: ModuleType) -> None:
    assert "`queued_max_requests` (500 requests)" == generate.with_figures("{queued_max_requests}")
    assert "up to 50,000, 64 MiB" == generate.with_figures("up to {REQUEST_ENTRIES_MAX}, {RESPONSE_MAX_BYTES:bytes}")


def test_bounds_refuse_a_name_without_a_figure(generate: ModuleType) -> None:
    with pytest.raises(KeyError, match="NO_SUCH_CONSTANT"):
        generate.with_figures("at most {NO_SUCH_CONSTANT}")


def test_every_test_that_a_document_names_is_there() -> None:
    tests = Path(__file__).parent
    for document in DOCS.glob("*.md"):
        for path, name in re.findall(r"`tests/([\w/]+\.py)(?:::(\w+))?`", document.read_text("utf-8")):
            source = tests / path
            assert source.exists(), f"{document.name} names tests/{path}"
            assert not name or f"def {name}(" in source.read_text("utf-8"), f"{document.name} names {path}::{name}"


def test_fast_target_names_existing_folders() -> None:
    makefile = (DOCS.parent / "Makefile").read_text("utf-8")
    fast = re.search(r"^FAST := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert fast is not None
    named = fast[1].replace("\\", " ").split()
    assert len(named) > 10
    assert [] == [path for path in named if not (DOCS.parent / path).exists()]
