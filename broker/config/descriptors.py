"""Who gets how many descriptors, decided once when the broker starts. Pure.

A broker that gives all of them to connections cannot open the file that an fsync needs. So some are kept back for what must
always work, and the rest is shared out between cached files and connections.
"""

import attrs

# Standard streams, listening sockets, the catalogue with its two companions, the lock, the control plane's, an event loop of the
# user's: what a broker holds as long as it lives, with room to spare.
_LASTING = 32
# A processor has a poller and a bell; an acceptor has, too.
_PER_PROCESSOR = 2
# A handler opens a file or a directory, and one more while the first is evicted from the cache; flusher, housekeeper, catalogue
# writer, marker writer and spiller do the same.
_PER_WORKER = 2
_OTHER_WORKERS = 5
# A third of what can be shared out goes to files at most: a cached file only saves some µs, a connection is a client.
_FILES_SHARE = 3
# Below this there is nothing to share out: so many of each at least, and what does not fit fails when it happens.
_LEAST = 16


@attrs.frozen
class Descriptors:
    """``open_files`` of the logs' cache, ``spill_files`` of the shuffle's, ``connections`` of all data listeners."""

    open_files: int
    spill_files: int
    connections: int


def share_out(
    limit: int,
    *,
    open_files: int,
    spill_files: int,
    connections: int,
    control_connections: int,
    processors: int,
    handlers: int,
) -> Descriptors:
    """``limit``: of the process; the others are what is wished for, and none gets more than that."""
    kept = (
        _LASTING + _PER_PROCESSOR * (processors + 2) + _PER_WORKER * (handlers + _OTHER_WORKERS) + control_connections
    )
    left = max(0, limit - kept)
    files = min(open_files + spill_files, max(left // _FILES_SHARE, left - connections))
    spill = files * spill_files // (open_files + spill_files)
    logs, spills = max(min(_LEAST, open_files), files - spill), max(min(_LEAST, spill_files), spill)
    return Descriptors(
        open_files=logs, spill_files=spills, connections=min(connections, max(_LEAST, left - logs - spills))
    )
