"""SASL mechanisms: bytes <-> values."""
