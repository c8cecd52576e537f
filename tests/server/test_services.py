import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_SCRIPT = """
import sys
from broker.config import BrokerConfig
from broker.server import BrokerServer
from broker.server.services import import_services

listeners = [f"{scheme}://127.0.0.1:0" for scheme in ("kafka", "shuffle", "pulsar", "http")]
config = BrokerConfig(data_dir=sys.argv[1], listeners=listeners)
import_services(config)
before = set(sys.modules)
server = BrokerServer(config)
server.start()
print(len([name for name in set(sys.modules) - before if ".handlers." in name]))
server.stop()
"""


def test_a_standby_has_imported_all_handlers_before_it_takes_over(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert ["0"] == done.stdout.splitlines()
