"""Work in slices."""

from collections.abc import Generator

from broker.pulsar.dispatch.many_consumers import Chores


def chore(done: list[str], name: str, steps: int) -> Generator[None]:
    for _ in range(steps):
        done.append(name)
        yield


def test_each_slice_does_its_allowed_number_of_steps() -> None:
    chores, done = Chores(slice=2), list[str]()
    chores.add(chore(done, "a", 3))
    chores.add(chore(done, "b", 3))
    sizes = []
    while chores:
        chores.work()
        sizes.append(len(done))
    assert [2, 4, 6] == [size for at, size in enumerate(sizes) if size not in sizes[:at]]
    assert "aaabbb" == "".join(done)


def test_chores_without_steps_are_done_with_the_next() -> None:
    chores, done = Chores(), list[str]()
    for steps in (0, 0, 1, 0):
        chores.add(chore(done, "a", steps))
    chores.work()
    assert not chores
    assert ["a"] == done


def test_forgotten_chores_are_not_done() -> None:
    chores, done = Chores(), list[str]()
    chores.add(chore(done, "a", 1))
    chores.clear()
    chores.work()
    assert [] == done
