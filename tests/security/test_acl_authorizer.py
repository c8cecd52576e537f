"""The authorizer: answers that end with the ACLs they came from, and changes that are durable before they are in force."""

from collections.abc import Callable
from threading import Event, Thread

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from broker.errors import ConfigError, Refusal, StorageError
from broker.metadata.catalogue import AclRow
from broker.runtime.clock import SystemClock
from broker.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from broker.security.acl_authorizer import AclAuthorizer, TooManyAcls
from broker.security.acl_rules import AclFilter, InvalidAcl
from broker.security.principal import Principal
from tests.security.acls import NAMES, OPERATIONS, acls, is_allowed, is_any_allowed
from tests.security.catalogue import AclTable

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE = Operation.READ, Operation.WRITE
ALICE, EVE = Principal("User", "alice"), Principal("User", "eve")
HOST = "10.0.0.1"
READS = Acl(TOPIC, "t", PatternType.LITERAL, "User:alice", "*", READ, Permission.ALLOW)


@pytest.fixture
def table() -> AclTable:
    return AclTable()


def authorizer_of(table: AclTable, acls_max: int = 1000, default: bool = False) -> AclAuthorizer:
    return AclAuthorizer(table, SystemClock(), super_users=frozenset({"User:root"}), default=default, acls_max=acls_max)


def reads(authorizer: AclAuthorizer, who: Principal = ALICE, host: str = HOST, name: str = "t") -> bool:
    return authorizer.allows(who, host, READ, TOPIC, name)


def test_answer_ends_with_the_acl_it_came_from(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    assert not reads(authorizer)
    assert not authorizer.allows_any(ALICE, HOST, READ, TOPIC)
    assert [None] == authorizer.create([READS])
    assert reads(authorizer)
    assert authorizer.allows_any(ALICE, HOST, READ, TOPIC)
    assert [[READS]] == authorizer.delete([AclFilter(name="t")])
    assert not reads(authorizer)
    assert not authorizer.allows_any(ALICE, HOST, READ, TOPIC)


def test_acls_survive_a_restart(table: AclTable) -> None:
    authorizer_of(table).create([READS])
    assert reads(authorizer_of(table))


def test_super_users_may_do_what_everybody_is_denied(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    authorizer.create([Acl(TOPIC, "*", PatternType.LITERAL, "User:*", "*", Operation.ALL, Permission.DENY)])
    root = Principal("User", "root")
    assert reads(authorizer, root)
    assert authorizer.allows_any(root, HOST, READ, TOPIC)
    assert not reads(authorizer, Principal("Group", "root"))


def test_all_spellings_of_an_address_are_equal(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    authorizer.create([Acl(TOPIC, "t", PatternType.LITERAL, "User:*", "10.0.0.1", READ, Permission.ALLOW)])
    assert [True, True, False] == [reads(authorizer, EVE, host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2")]


def test_only_what_the_client_has_named_is_audited(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    authorizer.allows(EVE, HOST, READ, TOPIC, "t", audited=False)
    assert {} == authorizer.audit.counts()
    authorizer.allows(EVE, HOST, READ, TOPIC, "t")
    assert {("read", "topic"): 1.0} == authorizer.audit.counts()


def test_answers_are_bounded(table: AclTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.security.acl_authorizer._ANSWERS_MAX", 10)
    authorizer = authorizer_of(table)
    for number in range(25):
        reads(authorizer, name=str(number))
        authorizer.allows_any(Principal("User", str(number)), HOST, READ, TOPIC)
        authorizer.allows_by(EVE, HOST, READ, TOPIC, str(number), "alias")
    reads(authorizer, name="x" * 250)
    for name, alias in (("x" * 250, "alias"), ("name", "x" * 513)):
        authorizer.allows_by(EVE, HOST, READ, TOPIC, name, alias)
    assert len(authorizer._answers.of_resource) <= 10
    assert len(authorizer._answers.of_aliased) <= 10
    assert not any(len(key[-2]) > 249 or len(key[-1] or "") > 512 for key in authorizer._answers.of_aliased)
    assert len(authorizer._answers.of_type) <= 10
    assert not any(len(key[-1]) > 249 for key in authorizer._answers.of_resource)


def test_each_acl_of_a_request_is_checked_separately(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    bad = Acl(ResourceType.CLUSTER, "t", PatternType.LITERAL, "User:a", "*", READ, Permission.ALLOW)
    first, second, third = authorizer.create([READS, bad, READS])
    assert (first, third) == (None, None)
    assert isinstance(second, InvalidAcl)
    assert {READS} == set(authorizer.rules)
    assert 1 == table.changes


def test_existing_acl_is_not_written_again(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    authorizer.create([READS])
    assert [None] == authorizer.create([READS])
    assert [[]] == authorizer.delete([AclFilter(name="other")])
    assert 1 == table.changes


def test_the_number_of_acls_is_bounded(table: AclTable) -> None:
    authorizer = authorizer_of(table, acls_max=2)
    three = [Acl(TOPIC, name, PatternType.LITERAL, "User:a", "*", READ, Permission.ALLOW) for name in "abc"]
    results = authorizer.create(three)
    assert [None, None] == results[:2]
    assert isinstance(results[2], TooManyAcls)
    assert [None] == authorizer.create(three[:1])


def test_a_change_that_fails_changes_nothing(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    table.fault = "failed"
    assert isinstance(authorizer.create([READS])[0], StorageError)
    assert not reads(authorizer)
    authorizer.create([READS])
    table.fault = "failed"
    assert isinstance(authorizer.delete([AclFilter()])[0], StorageError)
    assert reads(authorizer)


def test_every_filter_has_its_own_result(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    writes = Acl(TOPIC, "t", PatternType.LITERAL, "User:alice", "*", WRITE, Permission.ALLOW)
    authorizer.create([READS, writes])
    results = authorizer.delete(
        [AclFilter(operation=READ), AclFilter(operation=Operation.UNKNOWN), AclFilter(name="t")]
    )
    assert [READS] == results[0]
    assert isinstance(results[1], InvalidAcl)
    assert {READS, writes} == set(results[2])  # type: ignore[arg-type]
    assert [] == list(authorizer.rules)


def test_a_request_may_not_match_without_end(table: AclTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.security.acl_authorizer._MATCHES_MAX", 3)
    authorizer = authorizer_of(table)
    authorizer.create([READS])
    results = authorizer.delete([AclFilter()] * 5)
    assert [False, False, False, True, True] == [isinstance(result, Refusal) for result in results]


def test_work_that_is_abandoned_removes_nothing(table: AclTable) -> None:
    authorizer = authorizer_of(table)
    authorizer.create([READS])

    def gone() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        authorizer.delete([AclFilter()], gone)
    assert reads(authorizer)


def test_unknown_acl_is_not_left_out(table: AclTable) -> None:
    table.rows.add(AclRow(2, "t", 3, "User:a", "*", 99, 2))
    with pytest.raises(ConfigError, match="Start the version of the broker"):
        authorizer_of(table)


@pytest.mark.parametrize("fault", ["lost", "kept"])
def test_possibly_stored_acl_is_removable(table: AclTable, fault: str) -> None:
    authorizer = authorizer_of(table)
    table.fault = fault
    authorizer.create([READS])
    assert not reads(authorizer)
    assert [[]] == authorizer.delete([AclFilter(principal="User:alice")])
    assert not reads(authorizer_of(table))


@pytest.mark.parametrize("fault", ["lost", "kept"])
def test_possibly_unstored_acl_can_be_created(table: AclTable, fault: str) -> None:
    authorizer = authorizer_of(table)
    authorizer.create([READS])
    table.fault = fault
    authorizer.delete([AclFilter()])
    assert reads(authorizer)
    assert [None] == authorizer.create([READS])
    assert reads(authorizer_of(table))


def test_revoked_acl_is_never_answered_from_cache(table: AclTable) -> None:
    """Threads ask without end while the ACL comes and goes. Who asks after a deletion has returned must be denied."""
    authorizer = authorizer_of(table)
    stop, asked = Event(), [0, 0, 0]

    def ask(index: int) -> Callable[[], None]:
        def run() -> None:
            while not stop.is_set():
                reads(authorizer)
                asked[index] += 1

        return run

    threads = [Thread(target=ask(index)) for index in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            authorizer.create([READS])
            assert reads(authorizer)
            authorizer.delete([AclFilter()])
            assert not reads(authorizer)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(asked)


class Changes(RuleBasedStateMachine):
    """Creating, deleting and restarting over a catalogue that fails, compared with a set of what is in force."""

    def __init__(self) -> None:
        super().__init__()
        self.table = AclTable()
        self.authorizer = authorizer_of(self.table, acls_max=10)
        self.present: set[Acl] = set()
        # Changes of these have failed, and nobody knows whether they are in the catalogue.
        self.doubtful: set[Acl] = set()

    @rule(fault=st.sampled_from(["failed", "lost", "kept"]))
    def have_the_next_change_fail(self, fault: str) -> None:
        self.table.fault = fault

    @rule(given=st.lists(acls(), min_size=1, max_size=4))
    def create(self, given: list[Acl]) -> None:
        fault = self.table.fault
        results = self.authorizer.create(given)
        done = {acl for acl, result in zip(given, results, strict=True) if result is None}
        if any(isinstance(result, StorageError) for result in results):
            assert done <= self.present, "some were created and some failed"
            self.doubtful |= set(given) if fault != "failed" else set()
            return
        if any(isinstance(result, TooManyAcls) for result in results):
            assert len(self.present | done) >= 10  # more where a doubtful change was found at a restart
        self.present |= done
        self.doubtful -= done

    @rule(
        name=st.none() | st.sampled_from(NAMES),
        principal=st.none() | st.just("User:alice"),
        pattern=st.sampled_from([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL]),
    )
    def delete(self, name: str | None, principal: str | None, pattern: PatternType) -> None:
        fault = self.table.fault
        wanted = AclFilter(name=name, principal=principal, pattern=pattern)
        expected = {acl for acl in self.present if wanted.matches(acl)}
        (result,) = self.authorizer.delete([wanted])
        if isinstance(result, StorageError):
            self.doubtful |= expected if fault != "failed" else set()
            return
        assert expected == set(result)  # type: ignore[arg-type]
        self.present -= expected
        self.doubtful = {acl for acl in self.doubtful if not wanted.matches(acl)}

    @rule()
    def restart(self) -> None:
        """What was answered is there; of what failed, anything may be."""
        self.authorizer = authorizer_of(self.table, acls_max=10)
        found = set(self.authorizer.rules)
        assert found ^ self.present <= self.doubtful
        self.present = found
        self.doubtful = set()

    @rule(name=st.sampled_from(NAMES), operation=st.sampled_from(OPERATIONS[1:]))
    def ask(self, name: str, operation: Operation) -> None:
        for _ in range(2):  # found out, and remembered
            assert is_allowed(
                self.present, "User:alice", HOST, operation, TOPIC, name, False
            ) == self.authorizer.allows(ALICE, HOST, operation, TOPIC, name, audited=False)
        # The other name that is asked for is one that ACLs of these names may cover.
        expected = is_any_allowed(self.present, "User:alice", HOST, operation, TOPIC) or is_allowed(
            self.present, "User:alice", HOST, operation, TOPIC, "hardcode", False
        )
        assert expected == self.authorizer.allows_any(ALICE, HOST, operation, TOPIC)

    @invariant()
    def what_is_in_force_is_what_was_answered(self) -> None:
        assert self.present == set(self.authorizer.rules)


def test_changes_with_failures_and_restarts() -> None:
    run_state_machine_as_test(Changes, settings=settings(max_examples=60, stateful_step_count=25))
