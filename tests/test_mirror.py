"""Every module has its own test files in the mirrored place, or the last line of its docstring says where it is tested:
``Tests: tests/x/test_y.py.``, several paths with commas between them. The tests of ``x/y.py`` are ``tests/x/test_y.py`` and
``tests/x/test_y_*.py``.
"""

import ast
import re
from pathlib import Path, PurePosixPath

import pytest

from tests.test_floors import ROOT, modules

_TESTS = re.compile(r"^Tests: (?P<paths>\S+(?:,\s+\S+)*)\.\Z", re.MULTILINE)


def mirrored(module: str) -> str:
    """Where the tests of a module belong."""
    *folders, name = module.removeprefix("broker.").split(".")
    return str(PurePosixPath("tests", *folders, f"test_{name}.py"))


def has_tests(path: Path) -> bool:
    return path.exists() or any(path.parent.glob(f"{path.stem}_*.py"))


def named_in_docstring(source: str) -> list[str]:
    """The paths that the last line of a module's docstring names."""
    match = _TESTS.search((ast.get_docstring(ast.parse(source)) or "").strip())
    return re.split(r",\s+", match["paths"]) if match else []


def paths_of_modules() -> dict[str, str]:
    """Name -> source, without the files that only make a folder a package or run one."""
    packages = {name.rpartition(".")[0] for name, _ in modules()}
    return {
        name: source for name, source in modules() if name not in packages and "." in name and name != "broker.__main__"
    }


def test_every_module_has_tests_or_names_them() -> None:
    without = {
        name
        for name, source in paths_of_modules().items()
        if not has_tests(ROOT / mirrored(name)) and not named_in_docstring(source)
    }
    assert set() == without, "write the test file, or say in the docstring where the module is tested"


def test_every_path_that_a_docstring_names_exists() -> None:
    wrong = [
        f"{name}: {path}"
        for name, source in modules()
        for path in named_in_docstring(source)
        if not (ROOT / path).is_file()
    ]
    assert [] == wrong


@pytest.mark.parametrize(
    ("docstring", "paths"),
    [
        ("It does.", []),
        ("It does.\n\nTests: tests/x/test_y.py.", ["tests/x/test_y.py"]),
        ("It does.\n\nTests: tests/x/test_y.py,\ntests/z/test_w.py.\n", ["tests/x/test_y.py", "tests/z/test_w.py"]),
        ("Tests: tests/x/test_y.py, and more.", []),
        ("Tests: tests/x/test_y.py.\n\nMore.", []),
    ],
)
def test_docstring_s_last_line_names_the_tests(docstring: str, paths: list[str]) -> None:
    assert paths == named_in_docstring(f'"""{docstring}"""')


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("broker.network.mute", "tests/network/test_mute.py"),
        ("broker.log", "tests/test_log.py"),
        ("protocol.kafka.records.batch", "tests/protocol/kafka/records/test_batch.py"),
    ],
)
def test_the_tests_mirror_the_tree(module: str, path: str) -> None:
    assert path == mirrored(module)
