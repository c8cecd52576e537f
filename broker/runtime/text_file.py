"""Small text files: settings, passwords, tokens."""


def read_text(path: str, most: int) -> str:
    """The whole file. OSError; ValueError for one of more than ``most`` bytes, or that is no UTF-8. No error shows the text."""
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no UTF-8 text") from None
