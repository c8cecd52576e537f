"""The producers of a topic: their admission, publishing, receipts and deduplication."""
