"""The I/O thread of the shuffle client and its connections."""
