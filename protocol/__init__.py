"""Bytes to values and back. Pure: no sockets, no threads, no clocks, nothing from ``broker``."""
