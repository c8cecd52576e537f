"""The assignors of the coordinator, by name: ``uniform`` and ``range``, as Kafka's. Pure functions.

``uniform`` gives every member as many partitions as any other, as far as subscriptions allow, and moves as few as it can
(``uniform_assignor.py``). ``range`` gives each member a contiguous range of every topic, the same range of topics that have
equally many partitions and the same subscribers, so that they can be joined (``range_assignor.py``). Racks are not looked at:
there is one broker.

Tests: tests/kafka/groups/consumer/test_uniform_assignor.py, tests/kafka/groups/consumer/test_range_assignor.py.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from broker.kafka.groups.consumer import range_assignor, uniform_assignor
from broker.kafka.groups.consumer.assignor_input import AssignorInput

Assignor = Callable[[AssignorInput], list[dict[UUID, frozenset[int]]]]

ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": uniform_assignor.assign, "range": range_assignor.assign}
