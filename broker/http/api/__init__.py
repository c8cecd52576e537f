"""The HTTP service's own views under ``/api/v1``: the broker as a whole, its history, and its reactor."""
