"""``broker serve`` with something that never ends: ListGroups computes or waits, or the broker itself at its start or
its end. Not a test.

A mock of one handler in a real process: what hangs in practice (a dead disk, a bug) cannot be made to on demand.
"""

import os
import sys
import threading
import time
from typing import Any

import attrs

from broker.kafka import handlers
from broker.storage.log_manager import LogManager
from protocol.kafka.api_keys import ApiKey

load = handlers.load


def say() -> None:
    sys.stderr.write('{"event": "stuck", "level": "info"}\n')
    sys.stderr.flush()


def hang(*_: Any, **__: Any) -> None:
    say()
    threading.Event().wait()


def never_ends(_broker: Any, _call: Any) -> None:
    say()
    while True:
        if os.environ["STUCK"] == "waits":
            time.sleep(3600)


def load_stuck() -> Any:
    apis = load()
    apis[ApiKey.LIST_GROUPS] = attrs.evolve(apis[ApiKey.LIST_GROUPS], handle=never_ends, inline=False)
    return apis


handlers.load = load_stuck

if os.environ["STUCK"] == "waits for ever at the end":
    LogManager.close = hang  # type: ignore[method-assign]
elif os.environ["STUCK"] == "waits for ever at the start":
    LogManager.open = hang  # type: ignore[method-assign]

if __name__ == "__main__":
    from broker.cli.main import main

    main()
