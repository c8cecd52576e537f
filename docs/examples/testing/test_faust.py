"""faust-streaming: an agent that sees the coordinator move goes on, and misses no order.

pip install reactor-broker faust-streaming pytest
pytest test_faust.py
"""

import asyncio

import faust


def application(bootstrap_servers, directory):
    """The code under test: it writes an invoice for each order."""
    app = faust.App(
        "billing",
        broker=f"kafka://{bootstrap_servers}",
        value_serializer="raw",
        datadir=directory,
        web_enabled=False,
        topic_disable_leader=True,
    )
    invoices = app.topic("invoices", value_type=bytes)

    @app.agent(app.topic("orders", value_type=bytes))
    async def bill(orders):
        async for order in orders:
            await invoices.send(value=b"invoice for " + order)

    return app


def test_each_order_has_an_invoice(broker, tmp_path):
    async def body():
        broker.create_topic("invoices")
        broker.produce("orders", ["one", "two", "three"])
        fault = broker.faults.add("error", api="FETCH", topic="orders", error="NOT_LEADER_OR_FOLLOWER")
        app = application(broker.bootstrap_servers, tmp_path)
        async with app:
            invoices = await broker.aio.wait_for("invoices", 3, timeout=60)
        assert fault.hits == 1
        assert {record.value for record in invoices} == {b"invoice for " + name for name in (b"one", b"two", b"three")}

    asyncio.run(body())
