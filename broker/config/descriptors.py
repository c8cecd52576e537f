"""Divides the file descriptors of the process, once when the broker starts. Pure.

If connections could take all of them, the broker could not open the file that an fsync needs. So some are reserved for
work that must never fail, and the rest is divided between cached files and connections.
"""

import attrs

# Descriptors that a broker holds as long as it runs, with a margin: standard streams, listening sockets, the three
# files of the catalogue, the lock, the control plane, an event loop of the user's.
_LASTING = 32
# A processor has a poller, a wake-up descriptor and a descriptor that reports fsyncs; an acceptor has the first two.
_PER_PROCESSOR = 3
# A handler opens a file or a directory, and one more while the first is evicted from the cache. So do the flusher's threads, the
# housekeeper, the catalogue writer, the marker writer and the spiller.
_PER_WORKER = 2
_OTHER_WORKERS = 4
# Files get at most a third of the divided descriptors: a cached file only saves some µs, a connection is a client.
_FILES_SHARE = 3
# The logs' request counts at most this much against that of spilled result partitions.
_LOGS_WEIGHT = 400
# Each gets at least this many, even if the limit is too low. Opening a descriptor beyond the limit then fails.
_LEAST = 16


@attrs.frozen
class Descriptors:
    """``open_files``: for the cache of the logs. ``spill_files``: for the cache of the shuffle. ``connections``: for
    all data listeners."""

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
    flushers: int,
) -> Descriptors:
    """``limit``: that of the process. The other numbers are those of the settings; nothing gets more than that."""
    workers = handlers + flushers + _OTHER_WORKERS
    reserved = _LASTING + _PER_PROCESSOR * (processors + 2) + _PER_WORKER * workers + control_connections
    left = max(0, limit - reserved)
    files = min(open_files + spill_files, max(left // _FILES_SHARE, left - connections))
    spill = min(spill_files, files * spill_files // (min(open_files, _LOGS_WEIGHT) + spill_files))
    logs, spills = max(min(_LEAST, open_files), files - spill), max(min(_LEAST, spill_files), spill)
    return Descriptors(
        open_files=logs, spill_files=spills, connections=min(connections, max(_LEAST, left - logs - spills))
    )
