"""How many descriptors the process may have. Files, sockets and pollers share this limit.

The limit belongs to the process. `broker serve` raises it; a broker that is embedded in another process only reads it.
"""

import resource
from typing import Final

UNLIMITED: Final = 2**31


def descriptor_limit() -> int:
    """The soft RLIMIT_NOFILE; ``UNLIMITED`` where there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY or soft > UNLIMITED else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one: many systems start a process with 1,024 descriptors and allow far more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # macOS reports "unlimited" and refuses it; the limit stays as it was
