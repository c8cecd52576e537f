"""kill -9 and the loss of the disk, again and again, under clients of all kinds: a broker elsewhere goes on, and nothing is lost.

``BROKER_KILL_CYCLES`` says how often (3); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails).
"""

import os
import random
from pathlib import Path

import pytest

from tests.durable.cycles import lose_machines
from tests.durable.durable_broker import durable_postgres

CYCLES = int(os.environ.get("BROKER_KILL_CYCLES", "3"))
SEED = int(os.environ.get("BROKER_KILL_SEED", random.SystemRandom().randrange(2**32)))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 60 * CYCLES)]


def test_nothing_is_lost_with_the_machines(tmp_path: Path) -> None:
    print(f"BROKER_KILL_SEED={SEED}")
    with durable_postgres() as postgres:
        lose_machines(tmp_path, postgres, CYCLES, SEED)
