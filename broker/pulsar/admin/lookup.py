"""Lookup over HTTP: to which address a client connects for a topic. There is one broker: this.

``brokerUrl`` and ``brokerUrlTls`` are the addresses of the listeners without and with TLS; clients need both keys, and take the one
that goes with the URL at which they ask.
"""

from broker.network.routes import TEXT, Answer, Call, HttpError, Route, json_answer
from broker.pulsar.admin.calls import require_topic, route, topic_name
from broker.pulsar.context import PulsarContext
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
        self._context.namespaces.require(name.namespace)
        named = call.query.get("listenerName") or call.headers.get("x-pulsar-listenername")
        plain, tls = self.urls(call, named)
        http = f"http://{call.headers.get('host', '')}"
        return json_answer(
            {"brokerUrl": plain, "brokerUrlTls": tls, "httpUrl": http, "httpUrlTls": "", "nativeUrl": plain or tls}
        )

    def urls(self, call: Call, named: str | None = None) -> tuple[str, str]:
        """Without and with TLS; empty where no listener does that. Raises HttpError."""
        context = self._context
        listeners = list(context.listeners.values())
        if named is not None:
            listener = context.listeners.get(named)
            if listener is None:
                raise HttpError(404, f"the broker do not have {named[:200]} listener")
            listeners.insert(0, listener)
        urls = {}
        for listener in reversed(listeners):
            host, port = context.advertised(listener.name, call.peer)
            host = f"[{host}]" if ":" in host else host
            urls[listener.ssl] = f"pulsar{'+ssl' * listener.ssl}://{host}:{port}"
        return urls.get(False, ""), urls.get(True, "")

    def bundle(self, call: Call) -> Answer:
        require_topic(self._context, call, Operation.DESCRIBE, topic_name(call))
        return Answer(200, b"0x00000000_0xffffffff", TEXT)
