"""A simulation with a listener on which clients log in: accounts, ACLs, quotas, and who tries them.

The others use that listener too, as one user who may do everything. Malformed data comes over the listener without logins.
"""

from typing import Any

from broker.metadata.catalogue import CredentialRow, QuotaRow
from broker.security.client_quotas import Entity, Kind
from tests.scram import stored_keys
from tests.sim.clients.client import Client
from tests.sim.clients.guarded import Grant, Stranger, Visitor, Warden
from tests.sim.clients.login import Account
from tests.sim.history import History
from tests.sim.host import Host
from tests.sim.world import World

LOGIN_PORT = 9095
TOPIC = "guarded"
_STAFF, _VISITOR = "staff", "visitor, of =odd= name"


class SecurityScene:
    """``batch_most``: bytes of the largest request to produce."""

    def __init__(self, world: World, host: Host, history: History, rng: Any, batch_most: int) -> None:
        mechanism = rng.choice(("SCRAM-SHA-256", "SCRAM-SHA-512"))
        staff, visitor = Account(_STAFF, "secret 1", mechanism), Account(_VISITOR, "secret 2", mechanism)
        for account in (staff, visitor):
            salt = rng.randbytes(16)
            keys = stored_keys(mechanism, account.password, salt)
            row = CredentialRow(account.user, mechanism, salt, *keys, 4096)
            host.tables.credentials[account.user, mechanism] = row
        host.listeners.append(f"kafka+sasl://127.0.0.1:{LOGIN_PORT}")
        host.settings |= {
            "sasl_enabled_mechanisms": [mechanism],
            # A login may be renewed once in a second; clients do it from half of this time on.
            "connections_max_reauth_ms": rng.choice((0, 2_500, 6_000)),
            "connection_failed_authentication_delay_ms": rng.choice((0, 100, 1_000)),
            "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super_users": f"User:{_STAFF};User:ANONYMOUS",
        }
        if rng.random() < 0.6:
            # A few requests in a second: with more, nobody is throttled; with less, nobody comes to an end.
            quotas = {Kind.PRODUCE: batch_most * rng.choice((3, 10)), Kind.FETCH: batch_most * rng.choice((15, 50))}
            host.settings["quota_window_num"] = 2
            for entity in (Entity(user=_STAFF), Entity(user="")):
                for kind, rate in quotas.items():
                    host.tables.quotas[str(entity), kind.value] = QuotaRow(str(entity), kind.value, float(rate))
        self._staff = staff
        common = (world, host.fabric, history)
        grant = Grant(world, TOPIC, f"User:{_VISITOR}")
        warden = self.employ(Warden("warden", *common, grant=grant, changes=rng.randrange(3, 12)))
        guests = [Visitor(f"visitor-{n}", *common, grant=grant, writes=rng.randrange(20, 60)) for n in range(2)]
        for guest in guests:
            guest.port, guest.account = LOGIN_PORT, visitor
        stranger = Stranger("stranger", *common, of=staff, tries=rng.randrange(2, 10))
        stranger.port = LOGIN_PORT
        self.clients: list[Client] = [warden, *guests, stranger]

    def employ(self, client: Client) -> Client:
        """Have it log in as the user who may do everything."""
        client.port, client.account = LOGIN_PORT, self._staff
        return client
