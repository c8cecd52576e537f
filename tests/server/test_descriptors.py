"""Who gets how many descriptors: whatever the limit, what must always work keeps some."""

from hypothesis import given
from hypothesis import strategies as st

from broker.server.descriptors import Descriptors, share_out

INT_MAX = 2**31 - 1


def usual(limit: int, *, connections: int = INT_MAX, spill_files: int = 0) -> Descriptors:
    return share_out(
        limit,
        open_files=400,
        spill_files=spill_files,
        connections=connections,
        control_connections=0,
        processors=3,
        handlers=8,
        flushers=8,
    )


def test_enough_descriptors_satisfy_all_requests() -> None:
    assert usual(1_048_576) == Descriptors(400, 0, 1_048_576 - 400 - 87)
    assert usual(1_048_576, spill_files=256, connections=5000) == Descriptors(400, 256, 5000)


def test_with_few_a_third_goes_to_files() -> None:
    assert usual(256) == Descriptors(56, 0, 113)
    assert usual(1024) == Descriptors(312, 0, 625)


def test_greedy_logs_leave_spilled_partitions_their_files() -> None:
    def files(limit: int) -> tuple[int, int]:
        shared = share_out(
            limit,
            open_files=10_000,
            spill_files=256,
            connections=INT_MAX,
            control_connections=0,
            processors=3,
            handlers=8,
            flushers=1,
        )
        return shared.open_files, shared.spill_files

    assert (194, 123) == files(1024)
    assert (6386, 256) == files(20_000)


def test_files_get_what_few_connections_leave() -> None:
    assert usual(600, connections=100) == Descriptors(400, 0, 100)


def test_almost_no_descriptors_are_still_divided() -> None:
    assert usual(10) == Descriptors(16, 0, 16)


@given(
    limit=st.integers(300, 100_000),
    open_files=st.integers(16, 10_000),
    spill_files=st.sampled_from([0, 256]),
    connections=st.integers(0, INT_MAX),
    control_connections=st.sampled_from([0, 20]),
    processors=st.integers(1, 8),
    handlers=st.integers(1, 16),
)
def test_shares_stay_below_limit_with_a_reserve(
    limit: int,
    open_files: int,
    spill_files: int,
    connections: int,
    control_connections: int,
    processors: int,
    handlers: int,
) -> None:
    shared = share_out(
        limit,
        open_files=open_files,
        spill_files=spill_files,
        connections=connections,
        control_connections=control_connections,
        processors=processors,
        handlers=handlers,
        flushers=8,
    )
    assert shared.open_files <= open_files
    assert shared.spill_files <= spill_files
    assert shared.connections <= connections
    given_away = shared.open_files + shared.spill_files + shared.connections
    kept = limit - given_away - control_connections
    assert kept >= 32 + 2 * (processors + handlers + 8)
