"""Transactions: ``transaction.py`` decides, ``executor.py`` carries out, ``marker_writer.py`` writes into the logs.

The decision to commit or abort is one durable change of the catalogue, made before the first marker is written. After the last
marker is durable, a second change records that the decision was carried out, and commits the group offsets of the transaction.
A broker that dies between the two finds the decision at its next start and carries it out again.
"""
