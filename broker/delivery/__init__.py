"""Records on their way to consumers: which are acknowledged, which are in flight, how often each was delivered. Pure."""
