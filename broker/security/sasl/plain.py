"""PLAIN: the client sends its password, which is compared with the stored credential of SCRAM.

That takes as long as the credential has iterations, 2 to 20 ms of CPU, also for a user that does not exist. There is no cache of
passwords that were right: whoever could read the broker's memory could then guess them 10,000 times faster, and logins of users
who are online would be told apart by their speed. Clients that log in often should use SCRAM, which costs the broker 30 us.

Tests: tests/kafka/handlers/test_sasl_authenticate.py.
"""

import hmac

from broker.security.credentials import Credentials
from broker.security.principal import USER, Principal
from broker.security.sasl.exchange import AuthenticationFailed, Identity, Step
from protocol.errors import ProtocolError
from protocol.sasl import plain
from protocol.sasl.scram_server import USER_MAX_BYTES, salted_password, stored_keys


class PlainExchange:
    slow = True

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def evaluate(self, token: bytes) -> Step:
        try:
            authzid, user, password = plain.parse(token)
        except ProtocolError as error:
            raise AuthenticationFailed(str(error)) from None
        if len(user.encode()) > USER_MAX_BYTES:
            raise AuthenticationFailed("a user name that is too long")
        if authzid and authzid != user:
            raise AuthenticationFailed("an authorization id that is not the user's name", user)
        row, known = self._credentials.find_any(user)
        salted = salted_password(row.mechanism, password, row.salt, row.iterations)
        stored_key, _ = stored_keys(row.mechanism, salted)
        if not hmac.compare_digest(stored_key, row.stored_key) or not known:
            raise AuthenticationFailed("unknown user or wrong password", user)
        return Step(b"", Identity(Principal(USER, user)))
