"""How many descriptors the process may have: files, sockets, pollers all come out of one number.

The limit belongs to the process. Only a process that is the broker's own raises it; one that embeds a broker is asked for what
its limit is.
"""

import resource
from typing import Final

UNLIMITED: Final = 2**31


def descriptor_limit() -> int:
    """The soft RLIMIT_NOFILE; ``UNLIMITED`` where there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY or soft > UNLIMITED else soft


def raise_descriptor_limit() -> None:
    """Up to the hard limit: many systems start a process with 1,024 descriptors while allowing far more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # macOS says "unlimited" and refuses it; what was there before stays
