"""Requests of administrators to a Kafka cluster: topics, groups, settings and the cluster itself, as functions over a
``Routing``.

They work with any Kafka broker: they use the highest version of each API that both sides have, and ask only brokers
that serve them for the features of newer versions.
"""
