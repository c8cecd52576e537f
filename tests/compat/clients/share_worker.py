"""A worker of a share group in a process of its own: `python -m tests.compat.clients.share_worker KIND SERVERS GROUP TOPIC`.

KIND is ``ours`` or ``confluent``. It prints the value of each record once the broker has answered its acknowledgement, with a
question mark before it if nobody knows whether that counts. It ends when its standard input does. ``hold`` in place of that: it
prints what it has got and acknowledges nothing.
"""

import select
import sys
from collections.abc import Iterable


def is_asked_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def tell(values: Iterable[bytes | None], mark: str = "") -> None:
    sys.stdout.write("".join(f"{mark}{(value or b'').decode()}\n" for value in values))
    sys.stdout.flush()


def ours(servers: str, group: str, topic: str) -> None:
    from broker.client import AcknowledgementError, ShareConsumer

    with ShareConsumer(servers, group, [topic], settings={"default.api.timeout.ms": 120_000}) as jobs:
        while not is_asked_to_end():
            records = jobs.poll(0.1, max_records=5)
            failed: dict[tuple[str, int], list[int]] = {}
            try:
                jobs.commit()
            except AcknowledgementError as error:
                failed = error.offsets
            lost = [record for record in records if record.offset in failed.get((record.topic, record.partition), ())]
            tell((record.value for record in lost), "?")
            tell(record.value for record in records if record not in lost)


def hold(servers: str, group: str, topic: str) -> None:
    from broker.client import ShareConsumer

    with ShareConsumer(servers, group, [topic], acknowledgement="explicit") as jobs:
        while not is_asked_to_end():
            tell(record.value for record in jobs.poll(0.1))


def confluent(servers: str, group: str, topic: str) -> None:
    from confluent_kafka import KafkaException, ShareConsumer

    settings = {"bootstrap.servers": servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(settings) as jobs:
        jobs.subscribe([topic])
        while not is_asked_to_end():
            polled = [message for message in jobs.poll(0.1) if message.error() is None]
            for message in polled:
                jobs.acknowledge(message)
            try:
                answered = jobs.commit_sync(30)
            except KafkaException:
                answered = {}
            counts = {(where.topic, where.partition) for where, error in answered.items() if error is None}
            tell((m.value() for m in polled if (m.topic(), m.partition()) not in counts), "?")
            tell(m.value() for m in polled if (m.topic(), m.partition()) in counts)


if __name__ == "__main__":
    {"ours": ours, "hold": hold, "confluent": confluent}[sys.argv[1]](*sys.argv[2:])
