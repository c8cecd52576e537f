"""A process that owns the state: it takes it over, appends rows to the journal, and says on standard output what happens.

Arguments: the catalogue's URL, its schema, this holder's name, "wait" or "now". Lines: ``acquired EPOCH``, ``suspended``,
``resumed``, ``fenced``, ``stored NUMBER``, ``refused``, ``gave up`` after SIGTERM. A line on standard input: ``append`` a row,
or ``stop``.
"""

import os
import signal
import sys
import threading

from broker.cluster import owner as owner_module
from broker.cluster.owner import ANSWER_S, Callbacks, Owner
from broker.errors import Fenced, StorageError
from broker.metadata.journal import JournalRow
from broker.metadata.postgres_connection import Address
from broker.metadata.postgres_database import PostgresDatabase
from broker.metadata.postgres_journal import PostgresJournal
from broker.metadata.postgres_owner import OwnerSession
from broker.runtime.clock import SystemClock
from broker.runtime.threads import SystemThreads

LEASE_S = 3.0
# How long a standby leaves a free lock to the owner: on a busy machine the owner needs seconds to come back.
GRACE_S = 8.0


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(url: str, schema: str, holder: str, how: str) -> None:
    owner_module._GRACE_S = GRACE_S
    address = Address(url, schema)
    owner = Owner(
        lambda: OwnerSession(address, ANSWER_S),
        SystemClock(),
        SystemThreads(),
        holder=holder,
        address="127.0.0.1:9092",
        lease_s=LEASE_S,
        margin_s=0.2,
        renew_s=0.5,
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    say("waiting")
    if not owner.acquire(wait=how == "wait", stopped=stop.is_set):
        say("gave up")
        return
    owner.callbacks = Callbacks(lambda: say("suspended"), lambda: say("resumed"), lambda _reason: say("fenced"))
    owner.start(lambda error: say(f"crashed {error!r}"))
    database = PostgresDatabase(address)
    database.epoch = owner.epoch
    journal = PostgresJournal(database, lease_s=LEASE_S, on_renewed=owner.renewed, on_fenced=owner.lost)
    say(f"acquired {owner.epoch}")  # from here on tests take the engine away
    number = owner.number
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        try:
            journal.append([JournalRow(number + 1, holder.encode(), b"data", None)])
        except Fenced:
            say("refused")
        except StorageError as error:
            say(f"failed {error}")
        else:
            number += 1
            say(f"stored {number}")
    journal.close()
    database.close()
    owner.stop()
    say(f"threads {threading.active_count()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
