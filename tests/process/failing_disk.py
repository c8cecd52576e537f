"""A disk that fails on demand under a whole process: ``failing_disk.c``, compiled and preloaded."""

import shutil
import subprocess
from pathlib import Path

import pytest


class FailingDisk:
    """``environment`` is for the process whose disk is to fail. Files are compiled to ``directory``.

    ``kernel_aio``: the process may leave fsyncs to the kernel, as it does where nothing is preloaded."""

    def __init__(self, directory: Path, *, kernel_aio: bool = False) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("takes a C compiler")
        library = directory / "failing_disk.so"
        source = Path(__file__).with_suffix(".c")
        command = [
            compiler,
            "-shared",
            "-fPIC",
            *(["-DKERNEL_AIO"] if kernel_aio else []),
            "-o",
            str(library),
            str(source),
        ]
        built = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, check=False)
        if built.returncode != 0:
            pytest.skip(f"failing_disk.c does not compile here: {built.stderr.decode()[:200]}")
        self._control = directory / "failing_disk"
        self.environment = {"LD_PRELOAD": str(library), "FAILING_DISK": str(self._control)}

    def fail(self, calls: str, path: str) -> None:
        """From now on these calls fail on files that have this in their path. ``calls`` is "sync", "write", "sync,write", or
        "sync,later": every fsync, and writes once an fsync has failed; "call" or "kernel": fsyncs that the process calls, or
        leaves to the kernel."""
        temporary = self._control.with_suffix(".new")
        temporary.write_text(f"{calls}={path}")
        temporary.rename(self._control)

    def heal(self) -> None:
        self._control.unlink()
