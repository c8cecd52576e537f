"""Reading as far as it goes without waiting, from pipes and files."""

import os
import tempfile

from broker.runtime.terminal import TextInput


def test_pipe_gives_available_text_then_nothing_then_end() -> None:
    reader, writer = os.pipe()
    source = TextInput(reader)
    assert source.read(100, 0.0) is None
    os.write(writer, b"one\n")
    assert b"one\n" == source.read(100, 0.0)
    assert source.read(100, 0.0) is None
    os.write(writer, b"two")
    assert b"tw" == source.read(2, None)
    os.close(writer)
    assert b"o" == source.read(2, None)
    assert b"" == source.read(2, None)
    assert b"" == source.read(2, 0.0)
    os.close(reader)


def test_a_file_never_waits() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"abc")
        file.seek(0)
        source = TextInput(file.fileno())
        assert b"abc" == source.read(100, 0.0)
        assert b"" == source.read(100, 0.0)
