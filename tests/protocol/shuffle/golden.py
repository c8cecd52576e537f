"""The output of Flink 2.3.0's own encoders: golden/flink-2.3.0.json."""

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "flink-2.3.0.json").read_text())


def vectors(section: str) -> list[dict[str, Any]]:
    return list(GOLDEN[section])


def named(vector: dict[str, Any]) -> str:
    """A test's name for a vector."""
    parts = [str(vector[key]).rsplit(".", 1)[-1] for key in ("name", "event", "codec", "n") if key in vector]
    return " ".join(parts + [str(vector["length"])])
