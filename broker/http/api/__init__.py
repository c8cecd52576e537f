"""What the HTTP service itself shows under ``/api/v1``: the broker as a whole, its history, and its reactor."""
