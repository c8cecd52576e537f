"""Every contact with the outside: clocks, sockets, readiness, files, randomness, threads.

The rest of the broker gets these through a ``Runtime`` value, so that a simulation can put its own in their place.
"""

from collections.abc import Callable

import attrs

from broker.runtime.clock import Clock, SystemClock
from broker.runtime.disk import Disk, SystemDisk
from broker.runtime.entropy import Entropy, SystemEntropy
from broker.runtime.net import Network, SystemNetwork
from broker.runtime.poller import Poller, SelectorPoller
from broker.runtime.process import UNLIMITED, descriptor_limit
from broker.runtime.run_token import RunToken, new_run_token
from broker.runtime.threads import SystemThreads, Threads
from broker.runtime.web import Fetcher, SystemFetcher

__all__ = ["Runtime", "system_runtime"]


@attrs.frozen
class Runtime:
    """All contacts with the outside: the operating system's, or simulated ones."""

    clock: Clock
    entropy: Entropy
    threads: Threads
    disk: Disk
    network: Network
    new_poller: Callable[[], Poller]
    fetcher: Fetcher = attrs.field(factory=SystemFetcher)
    # How many descriptors the process may have.
    descriptor_limit: Callable[[], int] = lambda: UNLIMITED
    # For threads that gain nothing by running at the same time. None: they do gain, or are simulated.
    run_token: Callable[[], RunToken | None] = lambda: None
    # Whether a thread may be kept by a disk, so that another has to go on in its place.
    disk_may_hang: bool = False


def system_runtime() -> Runtime:
    """The operating system's."""
    return Runtime(
        clock=SystemClock(),
        entropy=SystemEntropy(),
        threads=SystemThreads(),
        disk=SystemDisk(),
        network=SystemNetwork(),
        new_poller=SelectorPoller,
        descriptor_limit=descriptor_limit,
        run_token=new_run_token,
        disk_may_hang=True,
    )
