import pytest

from broker.runtime.entropy import SystemEntropy
from broker.security.sasl.exchange import AuthenticationFailed
from broker.security.sasl.mechanisms import ScramExchange
from broker.security.shared_secret import SharedSecret
from protocol.sasl.scram import ScramClient

MECHANISM = "SCRAM-SHA-256"


def log_in(user: str, password: str) -> str:
    """Who the client is then."""
    secret = SharedSecret(MECHANISM, "drawn", lambda name: name in ("node-1", "node-2"), SystemEntropy)
    server = ScramExchange(MECHANISM, secret, SystemEntropy)
    client = ScramClient(MECHANISM, user, password, "nonce")
    step = server.evaluate(client.final(server.evaluate(client.first()).token))
    client.verify(step.token)
    assert step.identity is not None
    return step.identity.principal.name


@pytest.mark.parametrize("user", ["node-1", "node-2"])
def test_every_user_logs_in_with_the_one_password(user: str) -> None:
    assert user == log_in(user, "drawn")


@pytest.mark.parametrize(("user", "password"), [("node-1", "guess"), ("node-3", "drawn"), ("node-1", "drawn ")])
def test_others_do_not_get_in(user: str, password: str) -> None:
    with pytest.raises(AuthenticationFailed):
        log_in(user, password)
