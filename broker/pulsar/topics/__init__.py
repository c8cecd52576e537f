"""The topics of Pulsar's clients: their documents in the catalogue, and their producers and subscriptions."""
