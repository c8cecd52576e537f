"""What a stream that a person may be looking at wants: formatting, and colours."""

import os
from typing import Any


def is_terminal(stream: Any) -> bool:
    """False also for a stream that is missing or closed."""
    try:
        return stream is not None and bool(stream.isatty())
    except (ValueError, AttributeError):
        return False


def wants_colours(stream: Any) -> bool:
    """A terminal that can show them, unless NO_COLOR is set (no-color.org). FORCE_COLOR is for a log that shows them."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"
