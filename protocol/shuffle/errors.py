"""ErrorResponse: a Java Throwable as ObjectOutputStream writes it, followed by the id of its receiver.

It is written in the smallest form that Flink's decoder takes: fields omitted from a class descriptor (cause, stack trace) get
their defaults in ``Throwable.readObject``. Any Throwable from Flink is read, with its stack trace. Pure.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.shuffle.frame import HEADER, HEADER_BYTES, MAGIC
from protocol.shuffle.java_stream import encode_throwable, read_throwable
from protocol.wire import BytesLike

IO_EXCEPTION = "java.io.IOException"
ILLEGAL_ARGUMENT_EXCEPTION = "java.lang.IllegalArgumentException"
ILLEGAL_STATE_EXCEPTION = "java.lang.IllegalStateException"
RUNTIME_EXCEPTION = "java.lang.RuntimeException"
PARTITION_NOT_FOUND_EXCEPTION = "org.apache.flink.runtime.io.network.partition.PartitionNotFoundException"
PRODUCER_FAILED_EXCEPTION = "org.apache.flink.runtime.io.network.partition.ProducerFailedException"
CANCEL_TASK_EXCEPTION = "org.apache.flink.runtime.execution.CancelTaskException"

_RECEIVER = struct.Struct(">16s")


class ErrorResponse(NamedTuple):
    """``receiver`` None: the error is fatal, for all receivers of the connection."""

    class_name: str
    message: str | None
    receiver: bytes | None

    @property
    def is_fatal(self) -> bool:
        return self.receiver is None


def encode_error(class_name: str, message: str | None, receiver: bytes | None) -> bytes:
    """The whole frame. Raises ValueError for a class not listed above, which would break a client's connection."""
    body = encode_throwable(class_name, message)
    tail = b"\x00" if receiver is None else b"\x01" + _RECEIVER.pack(receiver)
    return HEADER.pack(HEADER_BYTES + len(body) + len(tail), MAGIC, 1) + body + tail


def partition_not_found(partition: object, receiver: bytes | None) -> bytes:
    """The frame, with Flink's message, for a partition that does not exist, or no longer exists."""
    return encode_error(PARTITION_NOT_FOUND_EXCEPTION, f"Partition {partition} not found.", receiver)


def parse_error(body: BytesLike) -> ErrorResponse:
    """The error in the bytes after the frame's header. Raises ProtocolError."""
    view = memoryview(body)
    throwable, end = read_throwable(view)
    if end >= len(view):
        raise ProtocolError("an error that ends before it says whom it is for")
    receiver: bytes | None = None
    if view[end]:
        receiver = bytes(view[end + 1 : end + 17])
        if len(receiver) != 16:
            raise ProtocolError("an error that ends inside its receiver id")
    return ErrorResponse(throwable.class_name, throwable.message, receiver)
