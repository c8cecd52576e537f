"""One module for each API. ``load`` imports them all, so a new API takes only a new file.

Tests: tests/kafka/test_service.py.
"""

import importlib
import pkgutil
from functools import cache

from broker.kafka.api import Api


@cache  # a program may start a broker for each of its tests
def load() -> dict[int, Api]:
    """Every API of this package by its key."""
    apis: dict[int, Api] = {}
    for info in pkgutil.iter_modules(__path__):
        api = importlib.import_module(f"{__name__}.{info.name}").API
        assert api.key not in apis, f"two modules answer {api.key.name}"
        apis[int(api.key)] = api
    return dict(sorted(apis.items()))
