"""Record batches (format v2) and what is in them."""
