"""A Java program of ours that runs with Flink's classes and answers questions, a line each."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.compat.flink import jars

_STOP_S = 10.0


class FlinkProgram:
    def __init__(
        self,
        release: str,
        source: Path,
        main: str,
        *arguments: str,
        options: Sequence[str] = ("-XX:TieredStopAtLevel=1",),
    ) -> None:
        """``main``: the class in ``source``, with its package. ``options``: of the JVM."""
        self.release = release
        command = ["java", "-Xshare:auto", *options, "-cp", jars.classpath(release, source), main, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_STOP_S)

    def _ask_line(self, *words: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the JVM has ended"
        return line.rstrip("\n")
