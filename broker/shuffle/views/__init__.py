"""What the HTTP API shows of the shuffle."""
