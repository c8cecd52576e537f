"""The first step of each task, in a Python worker of an executor."""

import gc

from pyspark import TaskContext

from broker.runtime.process import keep_freed_memory

# After this many tasks a worker has imported everything it needs.
_TASKS = 2
_begun = 0
# The freed memory of tasks that a worker keeps. More than an exchange usually holds at a time.
_KEPT_BYTES = 64 * 1024 * 1024
_keeps = False


def freeze_imports() -> None:
    """Exclude the objects that exist now from garbage collection; most belong to imported modules, which stay anyway.

    Spark collects garbage after each task of a worker that it keeps, which would take 50 ms for these objects. This is
    not done at every task, because the objects of a task must be freed.
    """
    global _begun
    if _begun < _TASKS and TaskContext.get() is not None:
        _begun += 1
        gc.freeze()


def reuse_memory() -> None:
    """Keep the memory that was freed, for a task that works through its rows in pieces of megabytes.

    It must be allocated from the C library, as Python's bytes are, and Arrow's with ``pyarrow.system_memory_pool()``.
    """
    global _keeps
    if not _keeps and TaskContext.get() is not None:
        _keeps = True
        keep_freed_memory(_KEPT_BYTES)
