"""Non-persistent topics: only consumers that are connected get the messages, which are not stored."""
