"""Has Spark's users see the sentence of a BrokerError without a traceback.

Spark puts the text that a Python worker sends into its own message, with the worker's traceback before our sentence. If
the user or a broker is at fault (BrokerError), only the sentence is sent, because the traceback is about our code.

This module imports no other module of ours at first, because Spark loads it whenever it looks for data sources.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, TypeVar

# Read by pyspark (4.1 to 4.3) when it reports an exception, after which the worker ends: so it affects only this
# exception.
_WITHOUT_TRACEBACK = "SPARK_HIDE_TRACEBACK"

C = TypeVar("C", bound=type)


def sentence_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """For functions that Spark's workers call: they report only the sentence of a BrokerError."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            result = function(*arguments, **named)
        except Exception as error:
            _hide_traceback_of(error)
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
    except Exception as error:
        _hide_traceback_of(error)
        raise


def _hide_traceback_of(error: Exception) -> None:
    from broker.errors import BrokerError

    # Elsewhere, for example in a driver, it would affect all workers that start later.
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if isinstance(error, BrokerError) and main is not None and main.name.startswith("pyspark."):
        os.environ[_WITHOUT_TRACEBACK] = "1"
