"""Every served API x what it requires: real requests, in every version, with real answers.

With everything denied and with each right missing, the error is Kafka's; with exactly the rights, the answer is the one that a
client gets to whom everything is allowed. And a client that may not see a resource gets the same bytes whether there is one.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import pytest

from broker.kafka.handlers import load
from broker.security.acl import Operation, ResourceType
from broker.security.acl_authorizer import AclAuthorizer
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import backup, own_apis
from protocol.kafka.schema import control
from tests.kafka.handlers.group_client import commit
from tests.kafka.handlers.kafka_client import FIRST_BY_ID, Kafka
from tests.kafka.handlers.txn_client import add_partitions, begin
from tests.kafka.required_rights import ROWS, Names, Right, Row
from tests.loops import loop_over
from tests.security.grants import AclGrants, Grant, Grants

SERVED = load()
DENIALS = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.delegation_token_authorization_failed,
}


class World:
    """A broker, and resources to ask for."""

    def __init__(self, kafka: Kafka, real: bool) -> None:
        """``real``: with ACLs in the catalogue."""
        self.kafka = kafka
        inside = kafka.inside
        self.grants = AclGrants(AclAuthorizer(inside.catalogue, inside.clock)) if real else Grants()
        inside.authorizer = self.grants
        self._numbers = itertools.count(1000)

    def missing(self) -> Names:
        """Names of nothing, all of one length."""
        number = next(self._numbers)
        return Names(f"t-{number}", f"g-{number}", f"x-{number}")

    def make(self) -> Names:
        """A topic, a group with an offset of it, and a transactional id."""
        names = self.missing()
        info = self.kafka.inside.logs.create_topic(names.topic, 1)
        names = attrs.evolve(names, topic_id=info.topic_id.bytes)
        assert commit(self.kafka, names.group, names.topic, 3) == [ErrorCode.none]
        assert add_partitions(self.kafka, begin(self.kafka, name=names.txn), names.topic) == [ErrorCode.none]
        return names

    def ask(self, row: Row, version: int, names: Names, grants: Iterable[Grant] | None) -> "Answer":
        """``grants`` None: everything is allowed."""
        fields = row.fields(names)
        if row.key is ApiKey.END_TXNS:
            member = own_apis.Member(**fields)
            request = bytes(own_apis.request(7, "test", [member], False))
        elif row.key is ApiKey.BACKUP:
            request = bytes(backup.request(7, "test", fields["action"], fields["backup_id"]))
        else:
            fields = self.kafka.by_id(row.key, version, fields)
            request = control.encode_request(row.key, version, 7, "test", fields)
        if grants is None:
            return Answer(row.key, version, self.kafka.exchange(request))
        with self.grants.only(*grants):
            return Answer(row.key, version, self.kafka.exchange(request))


class Answer:
    def __init__(self, key: ApiKey, version: int, frame: bytes) -> None:
        self.frame = frame
        if key is ApiKey.END_TXNS:
            self.codes = [own_apis.parse_response(frame)[1].error]
        elif key is ApiKey.BACKUP:
            self.codes = [backup.parse_response(frame)[1].error]
        else:
            self.codes = sorted(codes(control.parse_response(key, version, frame)[1]))

    @property
    def denials(self) -> set[int]:
        return set(self.codes) & DENIALS


def codes(value: Any) -> Iterator[int]:
    """All error codes in a response."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if field.name.endswith("error_code"):
                yield int(inner)
            else:
                yield from codes(inner)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from codes(each)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Kafka() as kafka:
        yield World(kafka, real=False)


@pytest.fixture(scope="module")
def real_world() -> Iterator[World]:
    with Kafka() as kafka:
        yield World(kafka, real=True)


def cases(rows: Iterable[Row]) -> dict[str, list[tuple[Row, int]]]:
    """Each row in all its versions."""
    return {
        row.id: [
            (row, version)
            for version in range(
                max(row.since, SERVED[row.key].min_version), min(row.until, SERVED[row.key].max_version) + 1
            )
        ]
        for row in rows
        if row.key in SERVED
    }


ALL = cases(ROWS)
NEEDY = cases(row for row in ROWS if row.rights)


def combinations(row: Row) -> Iterator[tuple[Right, ...]]:
    """Everything that is just enough."""

    def alternatives(right: Right | None) -> Iterator[Right]:
        while right is not None:
            yield right
            right = right.or_else

    return itertools.product(*map(alternatives, row.rights))


def grants(rights: Iterable[Right], names: Names) -> list[Grant]:
    return [right.grant(names) for right in rights]


def error_of(row: Row, version: int, right: Right) -> set[int]:
    return set() if right.error is None or version < row.silent_before else {right.error}


def shows(row: Row, names: Names, answer: Answer) -> bool:
    """Whether an answer about everything has what the client may see, by its name or by its id."""
    seen = [right.grant(names)[2] for right in row.rights if right.error is None]
    by_id = names.topic_id in answer.frame
    return all(name.encode() in answer.frame or (by_id and name == names.topic) for name in seen)


def test_every_api_has_a_row() -> None:
    assert {ApiKey(key) for key in SERVED} <= {row.key for row in ROWS}


@loop_over(("row", "version"), ALL)
def test_what_the_table_requires_is_enough(world: World, row: Row, version: int) -> None:
    what_is_required_is_enough(world, row, version)


def what_is_required_is_enough(world: World, row: Row, version: int) -> None:
    allowed = world.ask(row, version, world.make(), None)
    assert not allowed.denials
    for rights in combinations(row):
        names = world.make()
        answer = world.ask(row, version, names, grants(rights, names))
        assert set(answer.codes) == set(allowed.codes), rights
        assert shows(row, names, answer), rights
        assert not world.grants.denied


@loop_over(("row", "version"), NEEDY)
def test_first_missing_right_decides_the_error(world: World, row: Row, version: int) -> None:
    without_any_right_the_first_is_missed(world, row, version)


def without_any_right_the_first_is_missed(world: World, row: Row, version: int) -> None:
    names = world.make()
    first = row.rights[0]
    answer = world.ask(row, version, names, [])
    assert answer.denials == error_of(row, version, first)
    assert bool(world.grants.denied) == (first.error is not None), "only what was asked for by its name is audited"
    if first.error is None:
        assert not shows(row, names, answer)


@loop_over(("row", "version"), NEEDY)
def test_each_right_of_the_table_is_necessary(world: World, row: Row, version: int) -> None:
    for missing in row.rights:
        names = world.make()
        answer = world.ask(row, version, names, grants([right for right in row.rights if right is not missing], names))
        assert answer.denials == error_of(row, version, missing)
        if missing.error is None:
            assert not shows(row, names, answer)


@loop_over(("row", "version"), NEEDY)
def test_a_right_to_something_else_is_none(world: World, row: Row, version: int) -> None:
    rights_to_something_else_are_none(world, row, version)


def rights_to_something_else_are_none(world: World, row: Row, version: int) -> None:
    if row.key is ApiKey.INIT_PRODUCER_ID and row.label == "idempotent":
        return  # any topic will do
    others = [right for rights in combinations(row) for right in rights]
    answer = world.ask(
        row,
        version,
        world.make(),
        [grant for grant in grants(others, world.make()) if grant[1] is not ResourceType.CLUSTER],
    )
    assert answer.denials == error_of(row, version, row.rights[0])


@loop_over(("row", "version"), NEEDY)
def test_existing_and_missing_resources_are_indistinguishable(world: World, row: Row, version: int) -> None:
    if version >= FIRST_BY_ID.get(row.key, version + 1):
        return  # as in Kafka, it is no secret which ids there are: nobody guesses one
    for missing in row.rights:
        others = [right for right in row.rights if right is not missing]
        if (Operation.DESCRIBE, missing.resource_type) in [(other.operation, other.resource_type) for other in others]:
            continue  # who may describe the resource sees it
        there, elsewhere = world.make(), world.missing()
        field = {
            ResourceType.TOPIC: {"topic": elsewhere.topic},
            ResourceType.GROUP: {"group": elsewhere.group},
            ResourceType.TRANSACTIONAL_ID: {"txn": elsewhere.txn},
            ResourceType.CLUSTER: {"topic": elsewhere.topic, "group": elsewhere.group, "txn": elsewhere.txn},
        }[missing.resource_type]
        frames = []
        for names in (there, attrs.evolve(there, **field)):
            frame = world.ask(row, version, names, grants(others, names)).frame
            for kind in ("topic", "group", "txn"):
                frame = frame.replace(getattr(names, kind).encode(), f"<{kind}>".encode())
            frames.append(frame)
        assert frames[0] == frames[1], missing


@loop_over("row", [row for row in ROWS if row.key in SERVED])
def test_so_it_is_with_real_acls(real_world: World, row: Row) -> None:
    version = SERVED[row.key].max_version
    what_is_required_is_enough(real_world, row, version)
    if row.rights:
        without_any_right_the_first_is_missed(real_world, row, version)
        rights_to_something_else_are_none(real_world, row, version)
