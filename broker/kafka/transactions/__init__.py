"""Transactions: ``transaction.py`` decides, ``coordinator.py`` carries out, ``marker_writer.py`` writes into the logs.

The decision to commit or abort is one durable change of the catalogue, made before the first marker is written; that it was
carried out, with the group offsets of the transaction, is another one, made after the last marker is durable. A broker that
dies in between finds the decision and carries it out again.
"""
