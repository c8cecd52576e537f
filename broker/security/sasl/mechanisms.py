"""The mechanisms of a listener: by name, what begins a login. Put together when the broker starts.

Tests: tests/kafka/handlers/test_sasl_authenticate.py.
"""

from collections.abc import Mapping
from functools import partial

from broker.config import BrokerConfig
from broker.runtime.entropy import Entropy
from broker.security.credentials import Credentials
from broker.security.sasl.exchange import NewExchange
from broker.security.sasl.plain import PlainExchange
from broker.security.sasl.scram import ScramExchange

PLAIN = "PLAIN"


def open_mechanisms(config: BrokerConfig, credentials: Credentials, entropy: Entropy) -> Mapping[str, NewExchange]:
    """Those that ``config``, the listener's settings, enables, in its order."""
    mechanisms: dict[str, NewExchange] = {}
    for name in config.sasl_enabled_mechanisms:
        if name == PLAIN:
            mechanisms[name] = partial(PlainExchange, credentials)
        else:
            mechanisms[name] = partial(ScramExchange, name, credentials, entropy)
    return mechanisms
