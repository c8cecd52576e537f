"""Files that are part of the package, wherever it is installed."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable


def read_packaged(package: str, folder: str) -> dict[str, bytes]:
    """All files in a folder of a package and in its subfolders: their paths, with ``/``, and contents. OSError."""
    return dict(_walk(files(package).joinpath(folder), ""))


def _walk(folder: Traversable, before: str) -> Iterator[tuple[str, bytes]]:
    for item in sorted(folder.iterdir(), key=lambda each: each.name):
        if item.is_dir():
            yield from _walk(item, f"{before}{item.name}/")
        else:
            yield before + item.name, item.read_bytes()
