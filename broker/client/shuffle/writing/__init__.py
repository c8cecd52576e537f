"""The writing side of the shuffle client: puts records into buffers and sends the buffers to the broker."""
