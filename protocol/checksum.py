"""CRC-32C (Castagnoli), the checksum of Kafka's record batches.

``crc32c(data, value=0)`` takes any bytes-like object without copying it, and releases the GIL for large ones.
"""

from crc32c import crc32c

__all__ = ["crc32c"]
