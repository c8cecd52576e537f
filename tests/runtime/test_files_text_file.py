from pathlib import Path

import pytest

from broker.runtime.files import read_text


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfone\ntwo \xc3\x84")
    assert "one\ntwo Ä" == read_text(str(tmp_path / "f"), 100)


@pytest.mark.parametrize("data", [b"secret" * 20, b"secret\xff"])
def test_large_or_binary_file_is_refused_without_showing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(ValueError, match=r"f has more than 100 bytes|f is no UTF-8 text") as failure:
        read_text(str(tmp_path / "f"), 100)
    assert "secret" not in str(failure.value)


def test_missing_text_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_text(str(tmp_path / "f"), 100)
