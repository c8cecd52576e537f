"""Client quotas: what a client may produce, fetch, and have the broker do, per second."""
