"""Record batches (format v2) and the records in them."""
