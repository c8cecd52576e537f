"""What ACLs cost: one decision (kept, and found out), the load of many at the start, their memory, and one change of them.

    python tests/bench/bench_acl.py [ACLS]

Times are of the CPU of this thread, the best of several rounds. Memory is what tracemalloc sees.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator

from broker.metadata.catalogue import AclRow
from broker.metrics import Registry
from broker.runtime.clock import SystemClock
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.acl_rules import AclFilter
from broker.security.principal import Principal

HOST = "10.1.2.3"
PREFIXED, LITERAL = int(PatternType.PREFIXED), int(PatternType.LITERAL)


class Table:
    """A catalogue with only ACLs, whose changes cost nothing."""

    def __init__(self, rows: list[AclRow]) -> None:
        self.rows = rows

    def load_acls(self) -> list[AclRow]:
        return self.rows

    def alter_acls(self, added: object, removed: object) -> None:
        """Nothing to write."""


def rows(count: int) -> Iterator[AclRow]:
    """A tenth are prefixes of several lengths; each of a thousand principals has some; one principal has many."""
    for number in range(count):
        principal = "User:busy" if number % 10 == 0 else f"User:{number % 1000}"
        prefixed = number % 10 == 1
        name = f"{'p' * (number % 30)}-{number}" if prefixed else f"topic-{number}"
        yield AclRow(2, name, PREFIXED if prefixed else LITERAL, principal, "*", 3 + number % 2, 3)


def per_call(body: Callable[[int], object], calls: int, rounds: int = 7) -> float:
    """Seconds of CPU."""
    best = 1e9
    for _ in range(rounds):
        began = time.thread_time()
        for number in range(calls):
            body(number)
        best = min(best, (time.thread_time() - began) / calls)
    return best


def main(count: int) -> None:
    table = Table(list(rows(count)))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    authorizer = AclAuthorizer(table, SystemClock())  # type: ignore[arg-type]
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    began = time.thread_time()
    authorizer = AclAuthorizer(table, SystemClock())  # type: ignore[arg-type]
    load_s = time.thread_time() - began
    authorizer.register(Registry())
    print(f"{count} ACLs: loaded in {load_s:.2f} s, {used / max(count, 1):.0f} bytes each")

    topic, read = ResourceType.TOPIC, Operation.READ
    empty = per_call(lambda _: None, 100_000)
    for name in ("busy", "7", "nobody"):
        who = Principal("User", name)

        def kept(_: int, who: Principal = who) -> object:
            return authorizer.allows(who, HOST, read, topic, "topic-10", audited=False)

        def found(number: int, who: Principal = who) -> object:
            return authorizer.rules.decide(str(who), HOST, topic, f"topic-{number}")

        print(
            f"User:{name}: kept {(per_call(kept, 100_000) - empty) * 1e6:.2f} us, "
            f"found out {(per_call(found, 10_000) - empty) * 1e6:.2f} us"
        )
    who = Principal("User", "busy")
    some = per_call(lambda _: authorizer.rules.decide_any(str(who), HOST, Operation.WRITE, topic), 1000)
    print(f"any topic: {some * 1e6:.2f} us")

    acl = Acl(topic, "one-more", PatternType.LITERAL, "User:busy", "*", read, Permission.ALLOW)
    change = AclFilter(topic, acl.name, PatternType.LITERAL, acl.principal, acl.host)

    def come_and_go(_: int) -> None:
        authorizer.create([acl])
        authorizer.delete([change])

    print(f"an ACL created or deleted, without the disk: {per_call(come_and_go, 5) / 2 * 1e3:.1f} ms")
    began = time.thread_time()
    matches = sum(map(AclFilter(name="topic-10", pattern=PatternType.MATCH).matches, authorizer.rules))
    print(f"a filter over all: {time.thread_time() - began:.2f} s, {matches} found")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
