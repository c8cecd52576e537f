"""From the partitions of a Fetch request to its response: what there is to send, and waiting until it is enough."""
