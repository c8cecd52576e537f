"""Pulsar's admin REST API and its lookup over HTTP, as routes of the broker's http:// listeners.

Every handler runs on a handler thread of the admin lane and may block. Paths, statuses and JSON are those of Pulsar's API.
"""
