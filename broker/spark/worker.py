"""What each task does first, in a Python worker of an executor."""

import gc

from pyspark import TaskContext

_settled = False


def settle() -> None:
    """Have the garbage collector pass over what is there now, once for each worker: imports, which stay anyway.

    Spark collects garbage after each task of a worker that it keeps, and goes through all of that for 50 ms.
    """
    global _settled
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.freeze()
