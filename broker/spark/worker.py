"""What each task does first, in a Python worker of an executor."""

import gc

from pyspark import TaskContext

# After so many tasks a worker has imported what it ever will.
_TASKS = 2
_begun = 0


def settle() -> None:
    """Have the garbage collector pass over what is there now, which is mostly imports, and those stay anyway.

    Spark collects garbage after each task of a worker that it keeps, and goes through all of that for 50 ms. Not at each task:
    what has come with one must be able to go.
    """
    global _begun
    if _begun < _TASKS and TaskContext.get() is not None:
        _begun += 1
        gc.freeze()
