"""Compiles ``protocol/kafka/_runs.c``, which halves the CPU of pipelined requests and saves a fifth of those sent one at a time.

    python packaging/accelerator.py     beside its source, for a checkout; ``make accelerator``

Hatchling calls it as a build hook. With ``BROKER_ACCELERATOR=1`` in the environment the wheel has the compiled module, and is for
this platform only. Without, the wheel is pure Python, as ever, and needs no compiler. The module uses Python's stable ABI: one
wheel is for CPython 3.11 and each later version, but not for those without an interpreter lock, where the Python code runs.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "protocol" / "kafka" / "_runs.c"
NAME = "_runs.abi3.so"


def compile_to(directory: Path) -> Path:
    """Raises OSError, subprocess.CalledProcessError: there is no compiler, or it lacks Python's headers."""
    target = directory / NAME
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    # Extensions find Python's functions in the process that loads them.
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    flags = ["-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", *link]
    new = target.with_suffix(f".{os.getpid()}")
    subprocess.run([*compiler, *flags, f"-I{sysconfig.get_path('include')}", "-o", new, SOURCE], check=True)
    new.replace(target)
    return target


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    pass
else:

    class Accelerator(BuildHookInterface):  # type: ignore[type-arg, unused-ignore]
        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if os.environ.get("BROKER_ACCELERATOR") != "1" or self.target_name != "wheel":
                return
            self.compiled = tempfile.TemporaryDirectory()
            compiled = compile_to(Path(self.compiled.name))
            build_data["force_include"][str(compiled)] = f"protocol/kafka/{NAME}"
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            if hasattr(self, "compiled"):
                self.compiled.cleanup()


if __name__ == "__main__":
    sys.stdout.write(f"{compile_to(SOURCE.parent)}\n")
