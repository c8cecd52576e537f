"""Which objects a catalogue in PostgreSQL names, read without making, upgrading or changing anything in the database.

For commands.

Tests: tests/durable/test_inspect_objects.py.
"""

import attrs
import psycopg

from broker.errors import ConfigError
from broker.metadata.postgres_connection import Address, connect
from broker.metadata.postgres_layouts import MOST_NODES

_OWNER = "SELECT 'owner', NULL, epoch, number FROM owner"
_NAMED = (
    " UNION ALL SELECT DISTINCT 'file', object, 0, 0 FROM {0}.remote_files "
    "UNION ALL SELECT 'condemned', object, 0, 0 FROM {0}.condemned_objects "
    "UNION ALL SELECT 'row', object, 0, 0 FROM {0}.journal WHERE object IS NOT NULL"
)
# Schemas with a journal: of a broker alone, or of each of several nodes.
_SCHEMAS = "SELECT schemaname FROM pg_tables WHERE tablename = 'journal' AND schemaname = ANY(%s)"


@attrs.frozen
class NamedObjects:
    """Keys, the owner's epoch, and the number of the journal's last row.

    Of several nodes: keys of all of them, epoch and number of the first one.
    """

    files: set[str]
    condemned: set[str]
    journal: set[str]
    epoch: int
    number: int


def named_objects(address: Address) -> NamedObjects:
    """Raises ConfigError if the database cannot be read, or has no catalogue in this schema."""
    keys: dict[str, set[str]] = {"file": set(), "condemned": set(), "row": set()}
    epoch = number = 0
    try:
        with connect(address, "broker-inspect") as connection:
            connection.execute("SELECT FROM owner, journal, remote_files LIMIT 0")
            own = [attrs.evolve(address, node=node).own_schema for node in range(MOST_NODES)]
            found = sorted(schema for (schema,) in connection.execute(_SCHEMAS, (own,)).fetchall())
            # All in one statement, so as of one moment.
            named = _OWNER + "".join(_NAMED.format(schema) for schema in found)
            for kind, key, *owner in connection.execute(named.encode()):
                if kind == "owner":
                    epoch, number = owner
                else:
                    keys[kind].add(key)
    except psycopg.errors.UndefinedTable:
        raise ConfigError(
            f"Name the schema of a broker: {address.schema} in {address.place()} has no catalogue."
        ) from None
    except psycopg.Error as error:
        raise ConfigError(
            f"The catalogue's database {address.place()} cannot be read: {address.without_secrets(error)}"
        ) from error
    return NamedObjects(keys["file"], keys["condemned"], keys["row"], epoch, number)
