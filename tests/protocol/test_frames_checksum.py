from protocol.frames import crc32c


def test_the_check_value_of_crc_32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4, and every catalogue of CRCs


def test_checksum_can_be_continued_and_takes_views() -> None:
    assert crc32c(memoryview(bytearray(b"56789")), crc32c(b"1234")) == 0xE3069283
