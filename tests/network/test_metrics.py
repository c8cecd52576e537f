"""What the reactor measures, in the registry."""

from broker.metrics import Registry, names
from tests.network.echo import frame
from tests.network.harness import serving


def test_the_reactor_s_figures_are_in_the_registry() -> None:
    with serving() as served:
        registry = Registry()
        served.server.register_metrics(registry)
        client = served.connect()
        served.ask(client, frame(b"e", b"in") + frame(b"p", b"pool"), 2)
        assert {("other",): 2} == registry.values(names.REQUESTS)
        assert 1 == sum(registry.values(names.NETWORK_INLINE_REQUESTS).values())
        assert 1 == sum(registry.values(names.HANDLER_REQUESTS).values())
        assert 2 == sum(registry.values(names.HANDLERS).values())
        assert {("data",): 0} == registry.values(names.REQUEST_QUEUE_SIZE)
        (labels,) = registry.values(names.LISTENER_PROCESSOR_CONNECTIONS)
        assert "echo" == labels[0]
        for ratio in (names.NETWORK_IDLE_RATIO, names.HANDLER_IDLE_RATIO):
            assert 0.0 <= registry.values(ratio)[()] <= 1.0
        assert registry.values(names.REQUEST_MEMORY_CAPACITY_BYTES)[()] > 0


def test_what_a_listener_counts_begins_with_0() -> None:
    """Prometheus has no rate for the step from no value to 1."""
    counted = (names.LISTENER_ACCEPTED, names.LISTENER_REFUSED, names.LISTENER_THROTTLED, names.LISTENER_EVICTED)
    with serving() as served:
        registry = Registry()
        served.server.register_metrics(registry)
        for metric in (names.LISTENER_CONNECTIONS, *counted):
            assert {("echo",): 0} == registry.values(metric), metric.name
        served.ask(served.connect(), frame(b"e", b"in"), 1)
        assert {("echo",): 1} == registry.values(names.LISTENER_ACCEPTED)


def test_connection_with_parked_request_shows_its_mute_reason() -> None:
    with serving() as served:
        registry = Registry()
        served.server.register_metrics(registry)
        client = served.connect()
        client.send(frame(b"h", b"x"))
        served.until(lambda: served.service.parked)
        assert 1 == registry.values(names.MUTED_CONNECTIONS)["response_pending",]
        assert 0 == registry.values(names.MUTED_CONNECTIONS)["throttled",]


def test_a_busy_handler_is_not_idle() -> None:
    with serving() as served:
        registry = Registry()
        served.server.register_metrics(registry)
        client = served.connect()
        client.send(frame(b"w", b"x"))
        served.until(lambda: registry.values(names.HANDLERS)["busy",] == 1)
        assert registry.values(names.HANDLER_IDLE_RATIO)[()] < 1.0
        served.service.gate.set()
        served.until(lambda: client.frames)
