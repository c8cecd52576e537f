"""How the C library treats memory that was freed. A setting of the whole process; any thread.

glibc returns freed memory to the kernel early: large blocks at once, and the end of the heap as soon as some hundred KiB of it
are free. A process that works through data in pieces of megabytes then gets its memory anew for each piece. The kernel clears
every page again, which takes several times as long as copying the piece.
"""

import ctypes
import os

# From glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
# The largest threshold that glibc accepts: half of the largest heap of a thread.
_MMAP_THRESHOLD_MAX = 32 * 1024 * 1024

# macOS and musl do not have it.
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
_kept = 0


def keep_freed_memory(size: int) -> bool:
    """Keep up to ``size`` bytes of freed memory (in each of the allocator's heaps) for what is allocated next. The largest size
    that was asked for counts.

    Returns False if the C library cannot do that, or if the user has set it up (``MALLOC_...``).
    """
    global _kept
    if _mallopt is None or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    if size <= _kept:
        return True
    _kept = size
    return bool(_mallopt(_TRIM_THRESHOLD, size)) and bool(_mallopt(_MMAP_THRESHOLD, min(size, _MMAP_THRESHOLD_MAX)))
