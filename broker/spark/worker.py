"""The first step of each task, in a Python worker of an executor."""

import gc

from pyspark import TaskContext

# After this many tasks a worker has imported everything that it needs.
_TASKS = 2
_begun = 0


def freeze_imports() -> None:
    """Exclude the objects that exist now from garbage collection; most belong to imported modules, which stay anyway.

    Spark collects garbage after each task of a worker that it keeps, which would take 50 ms for these objects. This is not done
    at every task, because the objects of a task must be freed.
    """
    global _begun
    if _begun < _TASKS and TaskContext.get() is not None:
        _begun += 1
        gc.freeze()
