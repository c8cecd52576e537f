"""Messages arrive whole and in order, and a process that goes or stands still is noticed."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.runtime import channel
from broker.runtime.channel import MESSAGE_MAX, Channel, ChannelClosed, ChannelListener, connect


class Pair(NamedTuple):
    here: Channel
    there: Channel


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[ChannelListener]:
    listening = ChannelListener(f"{tmp_path}/socket")
    yield listening
    listening.close()


@pytest.fixture
def pair(listener: ChannelListener) -> Iterator[Pair]:
    here = connect(listener.path)
    there = listener.accept()
    yield Pair(here, there)
    here.close()
    there.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=300), max_size=20))
def test_messages_arrive_whole_and_in_order(pair: Pair, messages: list[bytes]) -> None:
    for message in messages:
        pair.here.send(message)
    assert messages == [pair.there.receive() for _ in messages]


def test_what_has_come_of_a_message_is_kept_over_a_timeout(pair: Pair) -> None:
    pair.here._socket.sendall(struct.pack(">I", 5) + b"ab")
    assert pair.there.receive(0.01) is None
    pair.here._socket.sendall(b"cde")
    assert b"abcde" == pair.there.receive()


def test_a_closed_channel_is_noticed_on_the_other_side(pair: Pair) -> None:
    pair.here.send(b"last")
    pair.here.close()
    assert b"last" == pair.there.receive()
    with pytest.raises(ChannelClosed):
        pair.there.receive()


def test_an_announced_length_beyond_the_bound_ends_the_channel(pair: Pair) -> None:
    pair.here._socket.sendall(struct.pack(">I", MESSAGE_MAX + 1))
    with pytest.raises(ChannelClosed):
        pair.there.receive()


def test_a_channel_on_which_nothing_is_taken_is_closed(
    listener: ChannelListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "SEND_S", 1)
    here = connect(listener.path)
    there = listener.accept()
    with pytest.raises(ChannelClosed):
        here.send(bytes(64 << 20))
    with pytest.raises(ChannelClosed):
        here.send(b"")
    there.close()


def test_only_the_user_who_made_the_socket_may_connect(listener: ChannelListener) -> None:
    assert 0o600 == Path(listener.path).stat().st_mode & 0o777


def test_a_socket_that_an_earlier_process_has_left_is_replaced(tmp_path: Path) -> None:
    first = ChannelListener(f"{tmp_path}/socket")
    second = ChannelListener(f"{tmp_path}/socket")
    here = connect(second.path)
    there = second.accept()
    there.send(b"second")
    assert b"second" == here.receive()
    for each in (first, second, here, there):
        each.close()


def test_a_message_that_is_not_there_yet_is_not_waited_for(pair: Pair) -> None:
    assert pair.there.receive(0) is None
    pair.here.send(b"one")
    assert b"one" == pair.there.receive(10)
    assert pair.there.receive(0) is None
    pair.here.close()
    with pytest.raises(ChannelClosed):
        pair.there.receive(10)
    with pytest.raises(ChannelClosed):
        pair.there.receive(0)
