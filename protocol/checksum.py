"""``crc32c(data, value=0)``: CRC-32C (Castagnoli) with the processor's instruction, of the package ``crc32c``.

It takes any bytes-like object without copying it, and releases the GIL for large objects.

The package's ``__init__`` also imports a command line and reads its own version from its metadata. These are 60 modules, 3 MB and
40 ms at each start of a broker or a command, and nobody here uses them. So its compiled module is loaded by itself.

Tests: tests/protocol/test_frames.py.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from typing import TYPE_CHECKING, Any

__all__ = ["crc32c"]


def _compiled_module() -> Any:
    """None if the package is built in another way than today's."""
    package = importlib.util.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    spec = importlib.machinery.PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module = None if TYPE_CHECKING else _compiled_module()
if _module is None:
    from crc32c import crc32c
else:
    crc32c = _module.crc32c
