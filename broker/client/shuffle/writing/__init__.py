"""Records into buffers, and buffers to the broker: the writing side of the shuffle client."""
