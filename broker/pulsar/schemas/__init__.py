"""Schemas: the versions that each topic has had, and which schemas go with which."""
