import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.faults.fault import (
    DELAY_MAX_MS,
    JUMP_MAX_MS,
    MACHINE,
    NUMBER_MAX,
    TEXT_MAX,
    Entity,
    Fault,
    Kind,
    Passing,
    Vocabularies,
    Vocabulary,
    fault_of,
)

WORDS = Vocabulary(
    kinds={
        "observe": Kind(passes=True),
        "error": Kind(frozenset({"error"})),
        "delay": Kind(frozenset({"delay_ms"})),
        "emptied": Kind(changes=True, thing="topic", parts=frozenset({"partition"}), may=frozenset({"offset"})),
    },
    apis=("PRODUCE", "OFFSET_COMMIT"),
    errors=("NOT_COORDINATOR", "FENCED"),
    names_of=lambda api: {"PRODUCE": ("topic", "partition"), "OFFSET_COMMIT": ("group",)}[api],
)
NAMES = st.sampled_from(["a", "b"])
MAYBE = st.none() | NAMES
PARTITIONS = st.none() | st.integers(0, 2)
ENTITIES = st.builds(Entity, MAYBE, PARTITIONS, MAYBE, MAYBE, MAYBE, MAYBE)
PASSINGS = st.builds(
    Passing,
    time_ms=st.integers(0),
    api=NAMES,
    client_id=MAYBE,
    principal=NAMES,
    entities=st.lists(ENTITIES, min_size=1, max_size=4).map(tuple),
    protocol=NAMES,
)
FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(list(MACHINE.kinds)) | st.text(max_size=TEXT_MAX),
    api=MAYBE,
    client_id=MAYBE,
    principal=MAYBE,
    topic=MAYBE,
    partition=PARTITIONS,
    group=MAYBE,
    transactional_id=MAYBE,
    subscription=MAYBE,
    partition_id=MAYBE,
    protocol=MAYBE,
    skip=st.integers(0, NUMBER_MAX),
    probability=st.floats(0, 1),
    seed=st.integers(-(2**63), 2**63 - 1),
    delay_ms=st.none() | st.integers(0, DELAY_MAX_MS),
    jump_ms=st.none() | st.integers(-JUMP_MAX_MS, JUMP_MAX_MS),
    error=MAYBE,
    member_id=MAYBE,
    offset=st.none() | st.integers(0, 2**63 - 1),
    partitions=st.none() | st.integers(1, NUMBER_MAX),
)
FAULTS |= st.builds(attrs.evolve, FAULTS, count=st.none() | st.integers(1, NUMBER_MAX))


@given(fault=FAULTS)
def test_json_carries_the_whole_fault(fault: Fault) -> None:
    assert fault == fault_of(json.loads(json.dumps(fault.as_json())))


@given(fault=FAULTS, passing=PASSINGS)
def test_every_selector_has_to_match(fault: Fault, passing: Passing) -> None:
    def asked(names: list[str], things: Any) -> bool:
        return all(getattr(fault, name) in (None, getattr(things, name)) for name in names)

    expected = [
        entity
        for entity in passing.entities
        if asked(["protocol", "api", "client_id", "principal"], passing)
        and asked(["topic", "partition", "group", "transactional_id", "subscription", "partition_id"], entity)
    ]
    assert expected == list(fault.matching(passing))


def test_a_selector_that_is_lacking_never_matches() -> None:
    heartbeat = Passing(0, "HEARTBEAT", "me", "User:me", (Entity(group="g"),))
    assert (Entity(group="g"),) == Fault(kind="x", group="g").matching(heartbeat)
    assert () == Fault(kind="x", group="g", topic="t").matching(heartbeat)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"kind": "eror", "error": "FENCED"},
            "no kind 'eror'. Did you mean error? Possible: observe, error, delay, emptied.",
        ),
        ({"kind": "observe", "api": "PRODUCT"}, "Did you mean PRODUCE? Possible: PRODUCE, OFFSET_COMMIT."),
        ({"kind": "error", "error": "FENCD"}, "Did you mean FENCED?"),
        ({"kind": "error"}, "Give error"),
        ({"kind": "observe", "error": "FENCED"}, "Leave out error"),
        ({"kind": "observe", "delay_ms": 1}, "Leave out delay_ms"),
        ({"kind": "delay"}, "Give delay_ms"),
        ({"kind": "observe", "offset": 1}, "Leave out offset"),
        ({"kind": "emptied", "topic": "t", "partitions": 1}, "Leave out partitions"),
        ({"kind": "observe", "api": "OFFSET_COMMIT", "topic": "t"}, "Leave out topic: no OFFSET_COMMIT request"),
        ({"kind": "emptied", "api": "PRODUCE", "group": "g"}, "Leave out group: no PRODUCE request"),
        ({"kind": "emptied", "api": "OFFSET_COMMIT"}, "Give topic for a fault of the kind 'emptied': no OFFSET_COMMIT"),
        ({"kind": "observe", "tpoic": "t"}, "Did you mean topic? Possible: kind, api"),
        ({"api": "PRODUCE"}, "Give the kind"),
        ({"kind": None}, "kind of a fault as a text"),
        ({"kind": "observe", "topic": 1}, "topic of a fault as a text"),
        ({"kind": "observe", "topic": "t" * (TEXT_MAX + 1)}, "at most 1000 characters"),
        ({"kind": "observe", "count": 0}, "count of a fault as a whole number from 1"),
        ({"kind": "observe", "count": True}, "count of a fault as a whole number"),
        ({"kind": "observe", "skip": None}, "skip of a fault as a whole number"),
        ({"kind": "observe", "partition": "0"}, "partition of a fault as a whole number"),
        ({"kind": "observe", "probability": 1.1}, "probability of a fault as a number from 0 to 1"),
        ({"kind": "observe", "probability": "1"}, "probability of a fault as a number from 0 to 1"),
        ({"kind": "delay", "delay_ms": DELAY_MAX_MS + 1}, "delay_ms of a fault as a whole number"),
    ],
)
def test_a_wrong_fault_is_explained(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        WORDS.checked(fault_of(fields))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"kind": "disk_full", "topic": "t"},
            "Leave out topic for a fault of the kind 'disk_full': it meets no requests.",
        ),
        ({"kind": "slow_fsync", "delay_ms": 1, "api": "PRODUCE"}, "Leave out api"),
        ({"kind": "slow_fsync", "jump_ms": 1}, "Give delay_ms"),
        ({"kind": "clock_jump", "jump_ms": JUMP_MAX_MS + 1}, "jump_ms of a fault as a whole number from -"),
        ({"kind": "clock_jump"}, "Give jump_ms"),
    ],
)
def test_a_wrong_fault_of_the_machine_is_explained(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        MACHINE.checked(fault_of(fields))
    assert says in str(error.value)


def test_faults_of_the_machine_last_until_they_are_removed() -> None:
    assert (None, 3) == (Fault(kind="disk_full").count, Fault(kind="disk_full", count=3).count)
    fault = MACHINE.checked(Fault(kind="DiskFull"))
    assert ("disk_full", None) == (fault.kind, fault.count)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "error"}, "needs requests: add it. Possible by hand: emptied."),
        ({"kind": "emptied"}, "Give topic"),
        ({"kind": "emptied", "topic": "t", "api": "PRODUCE"}, "Leave out api"),
        ({"kind": "emptied", "topic": "t", "group": "g"}, "Leave out group"),
        ({"kind": "emptied", "topic": "t", "when": lambda _: True}, "Leave out when"),
    ],
)
def test_what_cannot_happen_by_hand_is_explained(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        WORDS.checked_by_hand(fault_of(fields))


def test_a_field_that_no_request_of_the_api_has_is_not_asked() -> None:
    def not_asked(**fields: Any) -> set[str]:
        return set(WORDS.not_asked(Fault(kind="emptied", topic="t", **fields)))

    assert {"topic", "partition"} == not_asked(api="OFFSET_COMMIT", partition=0)
    assert set() == not_asked(api="PRODUCE", partition=0) | not_asked(partition=0)
    assert set() == WORDS.not_asked(Fault(kind="observe", api="OFFSET_COMMIT", topic="t"))


@pytest.mark.parametrize("spelt", ["OFFSET_COMMIT", "OffsetCommit", "offset_commit"])
def test_names_may_be_spelt_as_in_kafka(spelt: str) -> None:
    assert "OFFSET_COMMIT" == WORDS.checked(Fault(kind="observe", api=spelt)).api


# -- several protocols -------------------------------------------------------------------------------------------------

ERROR = Kind(frozenset({"error"}), apis=frozenset({"SEND", "END"}))
OTHER_WORDS = Vocabulary(
    kinds={"observe": Kind(passes=True), "error": ERROR, "fresh": Kind()},
    apis=("SEND", "END", "FLOW"),
    errors=("Fenced", "Busy"),
    plain=lambda fault: attrs.evolve(fault, topic=fault.topic and fault.topic.removeprefix("long://")),
)
ALL = Vocabularies({"one": attrs.evolve(WORDS, apis=(*WORDS.apis, "END")), "two": OTHER_WORDS})


@pytest.mark.parametrize(
    ("fields", "protocols"),
    [
        ({"kind": "observe"}, ["one", "two"]),
        ({"kind": "observe", "protocol": "Two"}, ["two"]),
        ({"kind": "observe", "api": "send"}, ["two"]),
        ({"kind": "observe", "api": "produce"}, ["one"]),
        ({"kind": "observe", "api": "END", "protocol": "one"}, ["one"]),
        ({"kind": "fresh"}, ["two"]),
        ({"kind": "delay", "delay_ms": 1, "api": "END"}, ["one"]),  # of which only this one has the kind
        ({"kind": "error", "error": "busy"}, ["two"]),
        ({"kind": "error", "error": "FENCED", "api": "SEND"}, ["two"]),
    ],
)
def test_a_fault_is_of_the_protocols_that_have_its_names(fields: dict[str, Any], protocols: list[str]) -> None:
    assert protocols == list(ALL.meanings(fault_of(fields)))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "observe", "api": "END"}, "Several protocols have END: give protocol='one' or protocol='two'."),
        ({"kind": "error", "error": "FENCED"}, "Several protocols have FENCED: give protocol='one' or"),
        ({"kind": "observe", "api": "SENT"}, "There is no api 'SENT'. Did you mean SEND? Possible: PRODUCE, OFFSET_C"),
        ({"kind": "frseh"}, "Did you mean fresh? Possible: observe, error, delay, emptied, fresh."),
        (
            {"kind": "observe", "protocol": "three"},
            "There is no protocol 'three'. Possible: one, two.",
        ),
        (
            {"kind": "observe", "api": "PRODUCE", "protocol": "two"},
            "There is no api 'PRODUCE'. Possible: SEND, END, FLOW.",
        ),
        ({"kind": "fresh", "api": "PRODUCE"}, "For one: There is no kind 'fresh'."),
        (
            {"kind": "error", "api": "FLOW", "error": "Busy"},
            "For two: A fault of the kind 'error' never meets FLOW, only",
        ),
        ({"kind": "error"}, "Give error for a fault of the kind 'error'."),
    ],
)
def test_a_fault_that_fits_no_protocol_or_too_many_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        ALL.checked(fault_of(fields))
    assert says in str(error.value)


def test_kinds_are_those_of_all_protocols() -> None:
    assert {**OTHER_WORDS.kinds, **WORDS.kinds} == ALL.kinds


def test_a_topic_has_the_name_that_requests_have() -> None:
    assert "t" == ALL.checked(Fault(kind="observe", topic="long://t")).topic
    assert "long://t" == ALL.checked(Fault(kind="observe", topic="long://t", protocol="one")).topic


def test_a_passing_as_json_has_no_empty_names() -> None:
    passing = Passing(7, "PRODUCE", None, "User:me", (Entity("t", 0), Entity()))
    expected = {"time_ms": 7, "api": "PRODUCE", "client_id": None, "principal": "User:me"}
    assert {**expected, "entities": [{"topic": "t", "partition": 0}]} == passing.as_json()
    assert {**expected, "entities": []} == attrs.evolve(passing, entities=(Entity(),)).as_json()
