"""How the file descriptors of the process are divided, decided once when the broker starts. Pure.

A broker that gives all of them to connections cannot open the file that an fsync needs. So some are reserved for what must always
work, and the rest is divided between cached files and connections.
"""

import attrs

# What a broker holds as long as it runs, with a margin: standard streams, listening sockets, the three files of the catalogue,
# the lock, the control plane, an event loop of the user's.
_LASTING = 32
# A processor has a poller, a wake-up descriptor and one that tells of fsyncs; an acceptor has the first two.
_PER_PROCESSOR = 3
# A handler opens a file or a directory, and one more while the first is evicted from the cache. So do the flusher's threads, the
# housekeeper, the catalogue writer, the marker writer and the spiller.
_PER_WORKER = 2
_OTHER_WORKERS = 4
# Files get at most a third of what is divided: a cached file only saves some µs, a connection is a client.
_FILES_SHARE = 3
# Beyond this number, the logs' wish does not make the share of spilled result partitions smaller.
_LOGS_WEIGHT = 400
# At least this many of each, even if the limit is too low. What exceeds the limit then fails when it is opened.
_LEAST = 16


@attrs.frozen
class Descriptors:
    """``open_files`` for the cache of the logs, ``spill_files`` for that of the shuffle, ``connections`` for all data
    listeners."""

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
    """``limit`` is that of the process. The other numbers are what the settings ask for; nothing gets more than that."""
    workers = handlers + flushers + _OTHER_WORKERS
    reserved = _LASTING + _PER_PROCESSOR * (processors + 2) + _PER_WORKER * workers + control_connections
    left = max(0, limit - reserved)
    files = min(open_files + spill_files, max(left // _FILES_SHARE, left - connections))
    spill = min(spill_files, files * spill_files // (min(open_files, _LOGS_WEIGHT) + spill_files))
    logs, spills = max(min(_LEAST, open_files), files - spill), max(min(_LEAST, spill_files), spill)
    return Descriptors(
        open_files=logs, spill_files=spills, connections=min(connections, max(_LEAST, left - logs - spills))
    )
