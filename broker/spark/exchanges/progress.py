"""A progress bar on the terminal while the map stage of an exchange runs; none without a terminal.

rich's refresh thread asks Spark for the state whenever it draws.

Tests: tests/spark/test_exchange.py.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

_REFRESH_PER_SECOND = 2


@contextmanager
def progress_bar(
    spark: SparkSession, what: str, enabled: bool | None, console: Console | None = None
) -> Iterator[None]:
    """``enabled`` None: if stderr is a terminal."""
    if not (sys.stderr.isatty() if enabled is None else enabled):
        yield
        return
    context = spark.sparkContext
    before = set(context.statusTracker().getActiveStageIds())
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _Tasks(spark, before),
        TimeElapsedColumn(),
        console=console or Console(stderr=True),
        refresh_per_second=_REFRESH_PER_SECOND,
    )
    with progress:
        task = progress.add_task(what, total=None)
        yield
        total = progress.tasks[0].total or 1
        progress.update(task, total=total, completed=total)


class _Tasks(ProgressColumn):
    """Shows how many tasks are done of the stages that have begun since, and moves the bar."""

    def __init__(self, spark: SparkSession, before: set[int]) -> None:
        super().__init__()
        self._tracker = spark.sparkContext.statusTracker()
        self._before = before

    def render(self, task: Task) -> Text:
        if not task.finished:
            try:
                done, total = self._count()
            except Exception:  # the context is being stopped, and a progress bar must not fail the job
                done, total = 0, 0
            if total:
                task.completed, task.total = min(done, total), total
        return Text("" if task.total is None else f"{int(task.completed)}/{int(task.total)} tasks")

    def _count(self) -> tuple[int, int]:
        done = total = 0
        for stage in self._tracker.getActiveStageIds():
            info = None if stage in self._before else self._tracker.getStageInfo(stage)
            if info is not None:
                done, total = done + info.numCompletedTasks, total + info.numTasks
        return done, total
