"""The contract of every Poller: selectors2's and the simulator's."""

from collections.abc import Callable

import pytest

from broker.runtime.net import WOULD_BLOCK, Listener
from broker.runtime.poller import READ, WRITE, Poller
from tests.contract.test_network import connected, in_world, listen
from tests.contract.worlds import WORLDS, World


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]()


def ready(poller: Poller) -> dict[str, int]:
    poller.arm()
    return {key.data: events for key, events in poller.poll(0)}


def eventually(world: World, poller: Poller, expected: dict[str, int]) -> None:
    world.until(lambda: ready(poller) == expected)


@in_world
def test_a_listener_is_readable_when_somebody_comes(world: World) -> None:
    listener, poller = listen(world), world.runtime.new_poller()
    poller.register(listener, READ, "listener")
    assert ready(poller) == {}
    world.connect(listener.address[1])
    eventually(world, poller, {"listener": READ})
    assert ready(poller) == {"listener": READ}, "level-triggered: as long as nobody accepts"
    poller.unregister(listener)
    assert ready(poller) == {}
    poller.close()
    listener.close()


@in_world
def test_a_socket_is_ready_for_what_was_asked(world: World) -> None:
    listener, poller = listen(world), world.runtime.new_poller()
    socket, client = connected(world, listener)
    poller.register(socket, READ, "socket")
    assert ready(poller) == {}
    poller.modify(socket, READ | WRITE, "socket")
    assert ready(poller) == {"socket": WRITE}
    client.send(b"data")
    eventually(world, poller, {"socket": READ | WRITE})
    poller.modify(socket, READ, "another name")
    assert ready(poller) == {"another name": READ}
    poller.unregister(socket)
    poller.close()
    socket.close()
    listener.close()


@pytest.mark.parametrize("leave", ["close", "reset", "shut_down_writing"])
def test_the_end_of_a_connection_is_readable(world: World, leave: str) -> None:
    def test() -> None:
        listener, poller = listen(world), world.runtime.new_poller()
        socket, client = connected(world, listener)
        poller.register(socket, READ, "socket")
        getattr(client, leave)()
        eventually(world, poller, {"socket": READ})
        assert ready(poller) == {"socket": READ}
        poller.unregister(socket)
        poller.close()
        socket.close()
        listener.close()

    world.run(test)


@in_world
def test_a_full_socket_is_not_writable(world: World) -> None:
    listener, poller = listen(world), world.runtime.new_poller()
    socket, client = connected(world, listener)
    blocked = 0
    while blocked < 20:
        blocked += socket.send([bytes(65536)], False) == WOULD_BLOCK
    poller.register(socket, WRITE, "socket")
    assert ready(poller) == {}
    client.received()
    eventually(world, poller, {"socket": WRITE})
    poller.unregister(socket)
    poller.close()
    socket.close()
    listener.close()


@in_world
def test_a_wake_up_ends_the_wait_once(world: World) -> None:
    poller = world.runtime.new_poller()
    poller.arm()
    poller.wakeup()
    assert list(poller.poll(None)) == []
    before = world.runtime.clock.monotonic()
    poller.arm()
    assert list(poller.poll(0.02)) == []
    assert world.runtime.clock.monotonic() - before >= 0.019, "the bell still rang"
    poller.close()


@in_world
def test_wake_up_before_the_wait_is_kept(world: World) -> None:
    poller = world.runtime.new_poller()
    poller.wakeup()
    poller.arm()
    assert list(poller.poll(None)) == []
    poller.close()


@in_world
def test_many_wake_ups_are_one(world: World) -> None:
    poller = world.runtime.new_poller()
    poller.arm()
    for _ in range(5):
        poller.wakeup()
    assert list(poller.poll(None)) == []
    poller.arm()
    assert list(poller.poll(0.01)) == []
    poller.close()


@in_world
def test_a_wake_up_after_closing_does_nothing(world: World) -> None:
    poller = world.runtime.new_poller()
    poller.arm()
    poller.close()
    poller.wakeup()


WRONG_USES: dict[str, Callable[[Poller, Listener], None]] = {
    "never registered": lambda poller, listener: poller.unregister(listener),
    "not registered yet": lambda poller, listener: poller.modify(listener, READ, 1),
}


@pytest.mark.parametrize("use", list(WRONG_USES))
def test_wrong_use_is_an_error(world: World, use: str) -> None:
    def test() -> None:
        poller, listener = world.runtime.new_poller(), listen(world)
        with pytest.raises(KeyError):
            WRONG_USES[use](poller, listener)
        poller.close()
        listener.close()

    world.run(test)


@in_world
def test_nothing_is_registered_twice_or_for_nothing(world: World) -> None:
    poller, listener = world.runtime.new_poller(), listen(world)
    with pytest.raises(ValueError):
        poller.register(listener, 0, 1)
    poller.register(listener, READ, 1)
    with pytest.raises(KeyError):
        poller.register(listener, READ, 1)
    poller.unregister(listener)
    poller.close()
    listener.close()
