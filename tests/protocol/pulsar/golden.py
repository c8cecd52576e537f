"""The recorded frames of Pulsar's C++ client (golden/pulsar-client.json, written by ``capture.py``)."""

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "pulsar-client.json").read_text())
SENDS: dict[str, list[bytes]] = {
    name: [bytes.fromhex(frame) for frame in frames] for name, frames in GOLDEN["sends"].items()
}
COMMANDS: dict[str, bytes] = {name: bytes.fromhex(frame) for name, frame in GOLDEN["commands"].items()}
