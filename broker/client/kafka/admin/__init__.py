"""What administrators ask a Kafka cluster: topics, groups, settings and the cluster itself, as functions over a ``Routing``.

They work with any Kafka broker: they use the highest version of each API that both sides have, and what only newer brokers have
is asked for only where it is served.
"""
