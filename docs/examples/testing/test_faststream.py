"""FastStream: each order gets an invoice, although a commit is refused once.

pip install reactor-broker 'faststream[confluent]' pytest
pytest test_faststream.py
"""

import asyncio

from faststream import AckPolicy
from faststream.confluent import KafkaBroker


def service(bootstrap_servers):
    """The code under test: it writes an invoice for each order."""
    stream = KafkaBroker(bootstrap_servers)

    @stream.subscriber("orders", group_id="billing", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
    @stream.publisher("invoices")
    async def bill(order: str) -> str:
        return f"invoice for {order}"

    return stream


def test_each_order_has_an_invoice(broker):
    async def body():
        broker.create_topic("invoices")
        broker.produce("orders", ["one", "two", "three"])
        fault = broker.faults.add("error", api="OFFSET_COMMIT", group="billing", error="COORDINATOR_LOAD_IN_PROGRESS")
        async with service(broker.bootstrap_servers) as stream:
            await stream.start()
            invoices = await broker.aio.wait_for("invoices", 3, timeout=30)
            fault.wait()
            while broker.lag("billing", "orders"):
                await asyncio.sleep(0.05)
        assert {record.value.decode() for record in invoices} == {
            f"invoice for {name}" for name in ("one", "two", "three")
        }

    asyncio.run(body())
