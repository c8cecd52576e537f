"""The real client, quiet and closed in the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulsar


@contextmanager
def client(url: str, **options: Any) -> Iterator[Any]:
    made = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)
    try:
        yield made
    finally:
        made.close()
