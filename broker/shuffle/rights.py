"""What a client of the shuffle protocol may do.

For the authorizer, all partitions of an owner are one resource: a TOPIC named ``shuffle:`` and the owner, as the writers name it
when they open their partitions (no Kafka topic has a colon in its name). WRITE permits opening and filling partitions of that
owner, READ reading, DELETE releasing, and DESCRIBE listing them. A PREFIXED pattern ``shuffle:`` covers all owners, and
``shuffle:etl-`` all owners with that prefix.

Readers name a partition by its id and cannot name its owner. So a partition that a client may not read does not exist for it: the
client waits as long as for an unopened partition, and gets the same answer. Likewise it cannot release or list partitions of
others. Denials are in the log of the authorizer.

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
    """The rights of a client. A value: it may outlive the connection."""

    authorizer: Authorizer
    principal: Principal
    host: str

    def may(self, operation: Operation, owner: str, *, audited: bool = True) -> bool:
        """Whether the client may do this with partitions of ``owner``."""
        return self.authorizer.allows(
            self.principal, self.host, operation, ResourceType.TOPIC, PREFIX + owner, audited=audited
        )

    def may_with_any(self, operation: Operation) -> bool:
        """False if the client may do this with no owner's partitions at all. Topics of Kafka count, too."""
        return self.authorizer.allows_any(self.principal, self.host, operation, ResourceType.TOPIC)


def rights_of(connection: Connection, authorizer: Authorizer | None) -> Rights | None:
    """None: the client may do everything. To be called after the handshake, when the client is known."""
    return None if authorizer is None else Rights(authorizer, connection.principal, connection.peer.host)
