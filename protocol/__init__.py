"""Bytes <-> values. Pure: no sockets, no threads, no clocks, nothing from ``broker``."""
