"""SCRAM-SHA-256 and SCRAM-SHA-512 against the stored credentials.

A user that does not exist takes the same steps as one whose password is wrong, with a credential that is invented for the name.
An exchange takes some 30 us of CPU, so it runs on the processor.

Tests: tests/kafka/handlers/test_sasl_authenticate.py.
"""

import base64

from broker.runtime.entropy import Entropy
from broker.security.credentials import Credentials
from broker.security.principal import USER, Principal
from broker.security.sasl.exchange import AuthenticationFailed, Identity, Step
from protocol.errors import ProtocolError
from protocol.sasl.scram_server import ScramServer

_NONCE_BYTES = 24


class ScramExchange:
    slow = False

    def __init__(self, mechanism: str, credentials: Credentials, entropy: Entropy) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._entropy = entropy
        self._server = ScramServer(mechanism)
        self._user: str | None = None
        self._known = False

    def evaluate(self, token: bytes) -> Step:
        try:
            return self._first(token) if self._user is None else self._final(token, self._user)
        except ProtocolError as error:
            raise AuthenticationFailed(str(error), self._user) from None

    def _first(self, token: bytes) -> Step:
        user = self._user = self._server.first(token)
        row, self._known = self._credentials.find(user, self._mechanism)
        nonce = base64.b64encode(self._entropy.bytes(_NONCE_BYTES)).decode()
        return Step(self._server.challenge(row.salt, row.iterations, row.stored_key, row.server_key, nonce))

    def _final(self, token: bytes, user: str) -> Step:
        answer = self._server.final(token)
        if answer is None or not self._known:
            raise AuthenticationFailed("unknown user or wrong password", user)
        return Step(answer, Identity(Principal(USER, user)))
