"""Kafka's numbers of the SCRAM mechanisms (ScramMechanism.type), as its requests about credentials have them.

Tests: tests/kafka/handlers/test_alter_user_scram_credentials.py.
"""

from collections.abc import Mapping
from typing import Final

CODES: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
NAMES: Final[Mapping[int, str]] = {code: name for name, code in CODES.items()}
