"""What consumer groups of KIP-848 cost in the pure machine: heartbeats, assignments, and 500 members that join.

python -m tests.bench.bench_consumer_group
"""

import time
from collections.abc import Callable
from uuid import UUID

from broker.kafka.groups.consumer.assignors import ASSIGNORS, AssignorInput, Subscribers
from broker.kafka.groups.consumer.values import HeartbeatRequest, TopicInfo, TopicsImage
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, topic_id

MEMBERS = 500
PARTITIONS = 10_000


def best_of(count: int, work: Callable[[], object]) -> float:
    """Seconds."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def stable_heartbeat() -> None:
    driver = GroupDriver.of(t=10)
    client = Client(driver, "member")
    for _ in range(3):
        client.beat()
    group, topics, rounds = driver.group, driver.topics, 20_000
    epoch = client.epoch

    def work() -> None:
        for _ in range(rounds):
            request = HeartbeatRequest("member", epoch, None, None, -1, "client", "/127.0.0.1")
            assert group.heartbeat(request, topics, print, 1.0) is not None

    print(f"heartbeat that changes nothing, with its request: {best_of(5, work) / rounds * 1e6:.2f} us")


def assignors() -> None:
    topics = {UUID(int=number + 1): PARTITIONS // 10 for number in range(10)}
    everything = tuple(topics)
    previous: list[dict[UUID, frozenset[int]]] = [{} for _ in range(MEMBERS)]
    same = (Subscribers(everything, tuple(range(MEMBERS))),)
    halves = (
        Subscribers(everything[:7], tuple(range(0, MEMBERS, 2))),
        Subscribers(everything[3:], tuple(range(1, MEMBERS, 2))),
    )
    for name, assign in ASSIGNORS.items():
        for what, subscribers in (("the same topics", same), ("other topics", halves)):
            fresh = AssignorInput(topics, subscribers, previous)
            first = assign(fresh)
            again = AssignorInput(topics, subscribers, [*first[:-1], {}])
            print(
                f"{name}, {MEMBERS} members of {what}, {PARTITIONS} partitions: "
                f"{best_of(3, lambda: assign(fresh)) * 1e3:.1f} ms, "  # noqa: B023
                f"again with one change {best_of(3, lambda: assign(again)) * 1e3:.1f} ms"  # noqa: B023
            )


def members_join(offered_at_once: bool) -> None:
    start = time.perf_counter()
    driver = GroupDriver.of(is_lazy=offered_at_once, t=PARTITIONS)
    clients = [Client(driver, f"member-{number:04}") for number in range(MEMBERS)]
    for client in clients:
        driver.heartbeat(client.request(), client.take)
    driver.work()
    rounds = 0
    longest = 0.0
    while any(client.epoch != driver.group.epoch or client.count != PARTITIONS // MEMBERS for client in clients):
        for client in clients:
            begin = time.perf_counter()
            driver.heartbeat(client.request(), client.take)
            longest = max(longest, time.perf_counter() - begin)
        driver.pass_time(0.0)
        driver.work()
        rounds += 1
    how = "at once" if offered_at_once else "one after the other"
    rows = sum(len(getattr(save, "put", ())) for save in driver.all_saves)
    print(
        f"{MEMBERS} members join {how}, {PARTITIONS} partitions: {time.perf_counter() - start:.2f} s, {rounds} rounds of "
        f"heartbeats, epoch {driver.group.epoch}, {rows} rows in {len(driver.all_saves)} saves, "
        f"longest heartbeat {longest * 1e3:.1f} ms"
    )


def topics_change() -> None:
    names = {f"topic-{number}": 1 for number in range(10_000)}
    driver = GroupDriver.of(**names)
    client = Client(driver, "member", tuple(names))
    client.beat()
    image = TopicsImage.of(2, {**driver.topics.by_name, "other": TopicInfo(topic_id("other"), 1)})
    took = best_of(1, lambda: driver.group.topics_changed(image, 0.0))
    print(f"a topic is made, in a group that subscribes to 10,000 others: {took * 1e3:.2f} ms")


if __name__ == "__main__":
    stable_heartbeat()
    assignors()
    members_join(offered_at_once=True)
    members_join(offered_at_once=False)
    topics_change()
