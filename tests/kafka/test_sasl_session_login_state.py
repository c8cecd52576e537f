"""The two tables of logins, against the docstring and Kafka's order of frames."""

import re

from hypothesis import given
from hypothesis import strategies as st

from broker.kafka import sasl_session
from broker.kafka.sasl_session import ANSWERED, TABLE, LoginEvent, LoginState, next_state
from protocol.kafka.api_keys import ApiKey
from tests.transitions import check_pairs

S, E = LoginState, LoginEvent


def test_the_docstring_lists_what_is_answered() -> None:
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in (sasl_session.__doc__ or "").splitlines()
        if line.startswith("|")
    ]
    described = {S[row[0]]: row[1] for row in rows if row[0] in S.__members__}
    assert set(S) == set(described)
    names = {"ApiVersions": ApiKey.API_VERSIONS, "SaslHandshake": ApiKey.SASL_HANDSHAKE}
    names["SaslAuthenticate"] = ApiKey.SASL_AUTHENTICATE
    for state, text in described.items():
        apis = ANSWERED[state]
        if apis is None:
            assert text == "everything"
        else:
            assert apis == {names[word] for word in re.findall(r"[A-Z][a-z]+[A-Z][a-z]+", text)}


def test_pair_outside_the_table_is_a_bug() -> None:
    check_pairs(TABLE, next_state, S, E)


@given(st.lists(st.sampled_from(E), max_size=12))
def test_nothing_but_a_proof_completes_a_login(events: list[LoginEvent]) -> None:
    state, chosen = S.INITIAL_REQUEST, False
    for event in events:
        if (state, event) not in TABLE:
            continue
        before, state = state, next_state(state, event)
        if event in (E.MECHANISM_CHOSEN, E.MECHANISM_CHOSEN_V0):
            chosen = True
        if state is S.COMPLETE:
            assert chosen
            assert event is E.PROVED
            assert before in (S.AUTHENTICATE, S.AUTHENTICATE_RAW)
        assert (ANSWERED[state] is None) == (state is S.COMPLETE)


def test_failed_and_expired_logins_are_final() -> None:
    assert not [state for state, _ in TABLE if state in (S.FAILED, S.EXPIRED)]
    assert frozenset() == ANSWERED[S.FAILED] == ANSWERED[S.EXPIRED]
