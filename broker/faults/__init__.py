"""Faults on demand: what a fault is, which requests it matches, and how often. Knows no protocol."""
