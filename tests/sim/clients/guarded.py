"""Clients of a listener that asks who they are: a warden who changes the ACLs of a topic, visitors to whom these apply, and
strangers who must not get in.

A visitor's request that was sent after a change was acknowledged, and answered before the next change was asked for, must be
answered as that change says.
"""

from typing import Any

import attrs

from broker.security.acl import Operation, PatternType, Permission, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from tests.kafka_connection import produce_fields
from tests.sim.clients.client import Call, Client
from tests.sim.clients.login import Account, Login
from tests.sim.world import Violation, World

_DENIED = ErrorCode.topic_authorization_failed


@attrs.define
class Grant:
    """The known state of a principal's right to write to the topic."""

    world: World
    topic: str
    principal: str
    allowed: bool = False
    settled: bool = True  # no change is on its way
    version: int = 0  # of the known state
    doubtful_life: int = 0  # of the broker: a change was asked for in it and not answered, and may still come

    @property
    def known(self) -> bool:
        return self.settled and self.doubtful_life != self.world.lives

    def changing(self) -> None:
        self.settled = False
        self.version += 1

    def changed(self, allowed: bool) -> None:
        self.settled, self.allowed = True, allowed
        self.version += 1

    def in_doubt(self, life: int) -> None:
        self.doubtful_life = life
        self.settled = False
        self.version += 1


class Warden(Client):
    """Allows and forbids in turn."""

    def __init__(self, *args: Any, grant: Grant, changes: int) -> None:
        super().__init__(*args)
        self._grant = grant
        self._left = changes
        self._next = True  # to be allowed

    @property
    def done(self) -> bool:
        return self._left <= 0

    def next_call(self) -> Call | None:
        if self._left <= 0 or self.pending or self._grant.topic not in self.history.ready:
            self.idle(0.2)
            return None
        if self.rng.random() < 0.6:
            self.idle(self.rng.random() * 0.4)
            return None
        self._grant.changing()
        assert self.socket is not None
        context = self._next, self.socket.wire.life
        if self._next:
            creation = {
                "resource_type": int(ResourceType.TOPIC),
                "resource_name": self._grant.topic,
                "resource_pattern_type": int(PatternType.LITERAL),
                "principal": self._grant.principal,
                "host": "*",
                "operation": int(Operation.WRITE),
                "permission_type": int(Permission.ALLOW),
            }
            return Call(ApiKey.CREATE_ACLS, {"creations": [creation]}, context)
        name_filter = {
            "resource_type_filter": int(ResourceType.TOPIC),
            "resource_name_filter": self._grant.topic,
            "pattern_type_filter": int(PatternType.LITERAL),
            "principal_filter": self._grant.principal,
            "host_filter": None,
            "operation": int(Operation.ANY),
            "permission_type": int(Permission.ANY),
        }
        return Call(ApiKey.DELETE_ACLS, {"filters": [name_filter]}, context)

    def answered(self, call: Call, body: Any) -> None:
        allowed, life = call.context
        results = body.results if allowed else body.filter_results
        if results[0].error_code:
            if self.strict:
                raise Violation(f"{self.name}: {call.key.name} says {results[0]}")
            self._grant.in_doubt(life)
            self.idle(0.2)
            return
        self.world.note(f"{self.name}: {'allowed' if allowed else 'forbidden'}")
        self._grant.changed(allowed)
        self._next = not allowed
        self._left -= 1

    def lost(self, call: Call) -> None:
        self._grant.in_doubt(call.context[1])


class Visitor(Client):
    """Writes as long as it may, and goes on trying when it may not."""

    def __init__(self, *args: Any, grant: Grant, writes: int) -> None:
        super().__init__(*args)
        self._grant = grant
        self._left = writes
        self.in_flight_most = self.rng.randrange(1, 4)

    @property
    def done(self) -> bool:
        return self._left <= 0

    def next_call(self) -> Call | None:
        if self._left <= 0 or self._grant.topic not in self.history.ready:
            self.idle(0.2)
            return None
        if self.rng.random() < 0.3:
            self.idle(self.rng.random() * 0.05)
            return None
        now_ms = int((self.world.now + 1_700_000_000) * 1000)
        batch = bytes(build_batch([(b"k", b"visit", [], now_ms)]))
        return Call(ApiKey.PRODUCE, produce_fields(self._grant.topic, batch, acks=1), self._grant.version)

    def answered(self, call: Call, body: Any) -> None:
        self._left -= 1
        error = body.responses[0].partition_responses[0].error_code
        grant = self._grant
        if not grant.known or call.context != grant.version:
            return  # a change came in between
        if grant.allowed == (error == _DENIED):
            what = "allowed" if grant.allowed else "forbidden"
            raise Violation(f"{self.name}: to write was {what} before it was asked for, and the answer is {error!r}")


class Stranger(Client):
    """Nobody who has an account: a wrong password, an unknown name, or no login at all."""

    def __init__(self, *args: Any, of: Account, tries: int) -> None:
        super().__init__(*args)
        self._of = of
        self._left = tries

    @property
    def done(self) -> bool:
        return self._left <= 0

    def _connect(self) -> None:
        if self._left <= 0:
            self._connect_at = self.world.now + 10.0
            return
        wrong = attrs.evolve(self._of, password=f"wrong {self.rng.random()}")
        unknown = attrs.evolve(self._of, user="nobody")
        self.account = self.rng.choice((wrong, wrong, unknown, None))
        super()._connect()
        self._login = None if self.account is None else Login(self.name, self.account, self.rng)
        if self.socket is not None:
            self._left -= 1

    def _login_answered(self, body: Any) -> None:
        super()._login_answered(body)
        if self._login is not None and self._login.done:
            raise Violation(f"{self.name}: {self.account} is let in")

    def _greeted(self, body: Any) -> None:
        super()._greeted(body)
        if self._login is None and self.account is not None:
            raise Violation(f"{self.name}: ApiVersions was answered after a login was refused")

    def login_refused(self) -> None:
        self._login = None

    def next_call(self) -> Call | None:
        """What nobody may ask who has not logged in. The broker closes the connection."""
        return Call(ApiKey.METADATA, {"topics": [], "allow_auto_topic_creation": False})

    def answered(self, call: Call, body: Any) -> None:
        raise Violation(f"{self.name}: {call.key.name} was answered without a login")
