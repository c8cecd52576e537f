"""What is wrong with the logs in a data directory that no broker uses, and mending them with the least loss."""
