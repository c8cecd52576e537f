"""Errors while a topic is read, beside those of the Kafka client; and what Spark's users see of our errors.

Spark puts the text that a Python worker sends into its own message, with the worker's traceback before our sentence. Where the
user or a broker is at fault (BrokerError), only the sentence is sent: the traceback is about our code, which is not at fault.

Tests: tests/spark/source/test_reading.py, tests/spark/source/test_stream_source.py, tests/spark/test_errors.py.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, TypeVar

from broker.errors import BrokerError

# Read by pyspark (4.1 to 4.3) when it reports an exception, after which the worker ends: so it is true of this exception only.
_WITHOUT_TRACEBACK = "SPARK_HIDE_TRACEBACK"

C = TypeVar("C", bound=type)


class DataLossError(BrokerError):
    """Records that the query should have read were deleted, or may have been. Raised only if ``failOnDataLoss`` is true."""


def sentence_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what Spark's workers call: of a BrokerError they report the sentence alone."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            result = function(*arguments, **named)
        except BrokerError:
            _hide_traceback()
            raise
        return _iterated(result) if isinstance(result, Iterator) else result

    return called


def sentences_only(cls: C) -> C:
    """``sentence_only`` for every public method of a class."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(cls, name, sentence_only(member))
    return cls


def _iterated(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except BrokerError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    # Elsewhere, in a driver for example, it would be true of all workers that start later.
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        os.environ[_WITHOUT_TRACEBACK] = "1"
