"""SASL mechanisms as bytes."""
