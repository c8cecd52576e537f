"""Lookup over HTTP: to which address a client connects for a topic. There is one broker: this.

``brokerUrl`` and ``brokerUrlTls`` are the addresses of the listeners without and with TLS; clients need both keys, and take the
one that goes with the URL at which they ask.

Tests: tests/pulsar/admin/test_lookup.py.
"""

from broker.network.routes import TEXT, Answer, Call, Route, json_answer
from broker.pulsar.admin.calls import require_topic, route, topic_name, web_urls
from broker.pulsar.context import PulsarContext
from broker.pulsar.handlers.lookup import service_urls
from broker.security.acl import Operation


class Lookup:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        base = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
        return [route("GET", base, self.look_up), route("GET", f"{base}/bundle", self.bundle)]

    def look_up(self, call: Call) -> Answer:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        self._context.topics.check_namespace(name)
        named = call.query.get("listenerName") or call.headers.get("x-pulsar-listenername", "")
        plain, tls = self.urls(call, named)
        http, https = web_urls(self._context, call)
        return json_answer(
            {"brokerUrl": plain, "brokerUrlTls": tls, "httpUrl": http, "httpUrlTls": https, "nativeUrl": plain or tls}
        )

    def urls(self, call: Call, named: str = "") -> tuple[str, str]:
        """Without and with TLS; empty where no listener does that. Raises ServiceNotReady."""
        plain, tls = service_urls(self._context, call.peer, named)
        return plain or "", tls or ""

    def bundle(self, call: Call) -> Answer:
        require_topic(self._context, call, Operation.DESCRIBE, topic_name(call))
        return Answer(200, b"0x00000000_0xffffffff", TEXT)
