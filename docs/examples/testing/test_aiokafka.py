"""aiokafka: a producer writes each record once, although an answer is lost.

pip install reactor-broker aiokafka pytest
pytest test_aiokafka.py
"""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


def test_lost_answer_does_not_write_twice(broker):
    async def body():
        await broker.aio.create_topic("orders")
        fault = broker.faults.add("reset_after", api="PRODUCE", topic="orders")
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True) as producer:
            for number in range(3):
                await producer.send_and_wait("orders", b"%d" % number)
        assert fault.hits == 1
        assert [record.value for record in await broker.aio.wait_for("orders", 3)] == [b"0", b"1", b"2"]

        consumer = AIOKafkaConsumer(
            "orders", bootstrap_servers=broker.bootstrap_servers, group_id="billing", auto_offset_reset="earliest"
        )
        async with consumer:
            assert [(await consumer.getone()).value for _ in range(3)] == [b"0", b"1", b"2"]
            await consumer.commit()
        assert await broker.aio.lag("billing", "orders") == 0

    asyncio.run(body())
