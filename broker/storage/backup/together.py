"""One node's part in a backup of several nodes of one machine; ``metadata/shared_moment.py`` says who sends what when.

All nodes pin their files in one directory, that of the node that was asked, which is laid out as that of one broker alone: so a
backup does not depend on the number of nodes, and is restored for any. What else a node has to say is in a file there
(``part-N.json``), from which the node that was asked makes the plan.

``take_part`` runs on a thread of its own in each node, ``Pinning`` on the handler of the node that was asked. Imported only where
there are several nodes.

Tests: tests/storage/backup/test_together.py, tests/process/test_nodes_backup.py.
"""

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any

from broker.errors import BrokerError, StorageError
from broker.log import get_logger
from broker.metadata.shared_wire import ERRORS, decode, encode
from broker.runtime.channel import Channel, ChannelClosed
from broker.storage.backup.staging import LogCut, Staging, cut, read_saved
from broker.storage.data_directory import CATALOGUE
from broker.storage.log_manager import LogManager

logger = get_logger("storage")

# The longest (s) that logs stand still when the others do not come to it: as appends wait meanwhile.
_TOGETHER_S = 1.0
# What the process with the catalogue may take between two messages: longer than all that it waits for itself.
_NEXT_S = 110.0


def part_path(directory: str, node: int) -> str:
    return f"{directory}/part-{node}.json"


class Pinning:
    """What the node that was asked does. A context manager, which ends the backup's moment if it is not over."""

    def __init__(self, channel: Channel, count: int, backup_id: str, directory: str) -> None:
        """``count``: of the nodes."""
        self._channel = channel
        self._begin = ["backup", backup_id, directory, f"{directory}/{CATALOGUE}", count]

    def __enter__(self) -> "Pinning":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def moment(self) -> None:
        """Wait until it is over. No topic may change meanwhile. Raises StorageError."""
        self._send(self._begin)
        self._wait()

    def staged(self) -> None:
        """Wait until all nodes have pinned their files and have written their parts, and the directory has the catalogue as of
        the moment. Raises StorageError."""
        self._wait()

    def _send(self, message: list[Any]) -> None:
        try:
            self._channel.send(encode(message))
        except ChannelClosed as error:
            raise StorageError(f"The process that has the catalogue is gone: {error}") from error

    def _wait(self) -> None:
        try:
            received = self._channel.receive(_NEXT_S)
        except ChannelClosed as error:
            raise StorageError(f"The process that has the catalogue is gone: {error}") from error
        if received is None:
            raise StorageError("The process that has the catalogue does not come to an end with the backup")
        answer = decode(received)
        if answer[0] == "failed":
            raise ERRORS[answer[1]](answer[2])


def take_part(connect: Callable[[], Channel], logs: LogManager, node: int, backup_id: str, directory: str) -> None:
    """Until this node's files are pinned in ``directory``, or the backup has failed."""
    try:
        channel = connect()
    except StorageError:
        return  # the process that has the catalogue is gone, and so is this one soon
    try:
        with logs.housekeeper.without_new_cleanings():
            channel.send(encode(["pin", backup_id, node]))
            cuts = _take(channel, logs)
            if cuts is None:
                return
            error = None
            try:
                _stage(cuts, logs, node, directory)
            except (OSError, BrokerError) as failure:
                error = str(failure)
        channel.send(encode(["staged", error]))
    except ChannelClosed:
        logger.warning("backup_ended_early", backup=backup_id)
    finally:
        channel.close()


def _take(channel: Channel, logs: LogManager) -> list[LogCut] | None:
    """The ends of this node's logs at the moment. None: there is none."""
    cuts: list[LogCut] | None = None
    while True:
        kind = _next(channel, _NEXT_S)
        if kind is None:
            return None
        if kind == "stage":
            return cuts
        assert kind == "take", kind
        released = False

        def together() -> bool:
            nonlocal released
            channel.send(encode(["taken"]))
            released = _next(channel, _TOGETHER_S) is not None
            return released

        cuts = cut(list(logs.partitions.values()), logs.clock, together)
        if not released and _next(channel, _NEXT_S) is None:
            return None
        channel.send(encode(["released", cuts is not None]))


def _next(channel: Channel, timeout_s: float) -> str | None:
    received = channel.receive(timeout_s)
    return None if received is None else str(decode(received)[0])


def _stage(cuts: list[LogCut], logs: LogManager, node: int, directory: str) -> None:
    if not logs.disk.exists(directory):
        raise StorageError("the node that was asked has ended")
    staging = Staging(logs.disk, logs.data_dir, directory, read_saved(logs.disk, logs.data_dir))
    for each in cuts:
        staging.add(each)
    file = logs.disk.open(part_path(directory, node), create=True)
    try:
        file.pwrite([json.dumps(staging.part(), separators=(",", ":")).encode()], 0)
    finally:
        file.close()


def add_parts(staging: Staging, logs: LogManager) -> None:
    """What the nodes have written. Raises OSError."""
    assert logs.nodes is not None
    for node in logs.nodes.node_ids:
        file = logs.disk.open(part_path(staging.directory, node), read_only=True)
        try:
            part = json.loads(file.pread(file.size(), 0))
        finally:
            file.close()
        staging.add_part(part)
