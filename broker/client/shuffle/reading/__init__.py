"""Input gates and their channels: the reading side of the shuffle client."""
