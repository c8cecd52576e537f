"""What a client of the shuffle protocol may do.

For the authorizer, what the writers of one owner write is one resource: a TOPIC with the name ``shuffle:`` and the owner, as the
writers name it when they open their partitions (no Kafka topic has a colon in its name). WRITE allows to open partitions of that
owner and to fill them, READ to read them, DELETE to release them, DESCRIBE to list them. A PREFIXED pattern ``shuffle:`` covers
all owners, and ``shuffle:etl-`` those whose names begin so.

Readers name a partition by its id and cannot name its owner. So a partition that a client may not read does not exist for it: it
waits for it as long as for one that nobody has opened, and is told the same. In the same way it cannot release or list what
belongs to others. Denials are in the log of the authorizer.

Pure; any thread.
"""

import attrs

from broker.network.service import Connection
from broker.security.acl import Authorizer, Operation, ResourceType
from broker.security.principal import Principal

READ, WRITE, DELETE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DELETE, Operation.DESCRIBE
PREFIX = "shuffle:"
NOT_AUTHORIZED = "Not authorized."


@attrs.frozen
class Rights:
    """Those of one client. A value: it may outlive the connection."""

    authorizer: Authorizer
    principal: Principal
    host: str

    def may(self, operation: Operation, owner: str, *, audited: bool = True) -> bool:
        """Whether the client may do this with what belongs to ``owner``."""
        return self.authorizer.allows(
            self.principal, self.host, operation, ResourceType.TOPIC, PREFIX + owner, audited=audited
        )

    def may_with_any(self, operation: Operation) -> bool:
        """False where there is nothing at all with which the client may do this. Topics of Kafka count too."""
        return self.authorizer.allows_any(self.principal, self.host, operation, ResourceType.TOPIC)


def rights_of(connection: Connection, authorizer: Authorizer | None) -> Rights | None:
    """None: the client may do everything. To be asked for after the handshake, when it is known who the client is."""
    return None if authorizer is None else Rights(authorizer, connection.principal, connection.peer.host)
