"""`python -m pip install` for the tests of documents: without a network, from the packages of the Python that runs the tests.

It puts links to exactly those packages that pip would have installed, with what they require, into the new environment, so a
document that forgets to install something fails here as it would at a reader's. It is copied into that environment as
``pip/__main__.py``, with the path of the tests' packages in ``PACKAGES``.
"""

import json
import os
import re
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])
BIN = Path(sysconfig.get_paths()["scripts"])
PACKAGES: list[str] = json.loads(os.environ.get("DOCS_TEST_PACKAGES", "[]"))
PROJECT = "reactor-broker"
_SCRIPT = "#!{python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
_FORCED = {
    "broker/spark/_pyspark_broker.py": "pyspark_broker.py",
    "broker/client/pytest_plugin.py": "reactor_broker_pytest.py",
}


def distribution(name: str) -> metadata.Distribution:
    wanted = name.lower().replace("_", "-")
    for found in metadata.distributions(path=PACKAGES):
        if (found.metadata["Name"] or "").lower().replace("_", "-") == wanted:
            return found
    raise SystemExit(f"ERROR: {name} is not among the packages of the tests")


def install(requirement: str, done: set[str]) -> None:
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    key = f"{parsed.name.lower()}[{','.join(sorted(parsed.extras))}]"
    if key in done:
        return
    done.add(key)
    found = distribution(parsed.name)
    if parsed.specifier and not parsed.specifier.contains(found.version, prereleases=True):
        raise SystemExit(f"ERROR: {parsed} is needed and the tests have {found.version}")
    if found.metadata["Name"] != PROJECT:
        link(found)
    for text in requirements_of(found):
        needed = Requirement(text)
        extras = parsed.extras or {""}
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            install(text, done)


def requirements_of(found: metadata.Distribution) -> list[str]:
    if found.metadata["Name"] != PROJECT:
        return found.requires or []
    # The project's own are those of pyproject.toml, not those of an install that may be older.
    import tomllib

    project = tomllib.loads(Path(os.environ["DOCS_TEST_PROJECT"], "pyproject.toml").read_text("utf-8"))["project"]
    more = []
    for extra, texts in project["optional-dependencies"].items():
        for text in texts:
            package, _, marker = text.partition(";")
            more.append(f"{package} ; {f'({marker}) and ' if marker else ''}extra == '{extra}'")
    return [*project["dependencies"], *more]


def link(found: metadata.Distribution) -> None:
    tops = {str(file).split("/", 1)[0] for file in found.files or () if not str(file).startswith(("..", "/"))}
    for top in tops - {"__pycache__"}:
        target = SITE / top
        if not target.exists() and not target.is_symlink():
            target.symlink_to(Path(str(found.locate_file(top))))
    scripts(found.entry_points)


def scripts(entry_points: metadata.EntryPoints) -> None:
    for entry in entry_points.select(group="console_scripts"):
        path = BIN / entry.name
        path.write_text(
            _SCRIPT.format(python=sys.executable, module=entry.module, function=entry.attr.partition(".")[0])
        )
        path.chmod(0o755)


def install_project(directory: str) -> None:
    """As an editable install does: a path, the two modules that are copied, and the metadata of the entry points."""
    import tomllib

    root = Path(directory).resolve()
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    (SITE / "_reactor_broker.pth").write_text(f"{root}\n")
    for source, name in _FORCED.items():
        shutil.copyfile(root / source, SITE / name)
    info = SITE / f"reactor_broker-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {project['version']}\n")
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in pairs.items()) for group, pairs in groups.items())
    )
    scripts(metadata.Distribution.at(info).entry_points)


def main(arguments: list[str]) -> None:
    if "--version" in arguments:
        print("pip, a stand-in")
        return
    names = [argument for argument in arguments if not argument.startswith("-")]
    if names[:1] != ["install"]:
        raise SystemExit(f"ERROR: the stand-in for pip cannot {' '.join(arguments)}")
    # Its own only need, which a real pip carries with it.
    sys.path.append(str(Path(str(distribution("packaging").locate_file("")))))
    done: set[str] = set()
    for name in names[1:]:
        project = re.fullmatch(r"(\.|reactor-broker)(\[.*\])?", name)
        if project:
            install_project(os.environ["DOCS_TEST_PROJECT"])
            install(f"{PROJECT}{project[2] or ''}", done)
        else:
            install(name, done)


if __name__ == "__main__":
    main(sys.argv[1:])
