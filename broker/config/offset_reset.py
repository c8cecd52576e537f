"""Where a group begins in a partition that it has never read: ``latest``, ``earliest``, or ``by_duration:`` and a duration.

Values: no thread, no I/O.
"""

import re

LATEST, EARLIEST = "latest", "earliest"
_BY_DURATION = "by_duration:"

# ISO 8601 as Java's Duration reads it: days, hours, minutes and seconds, of which there is at least one.
_DURATION = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?"
    r"(?:(?P<seconds>\d{1,9})(?:\.(?P<fraction>\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def reset_ms(text: str) -> int | None:
    """How far back in time (ms) a ``by_duration`` goes; None for the other two. Raises ValueError for anything else,
    which says what is allowed."""
    if text in (LATEST, EARLIEST):
        return None
    match = _DURATION.fullmatch(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else None
    if match is None or text[-1] in "PpTt":
        raise ValueError("it must be latest, earliest, or by_duration: and a duration such as PT1H or P2DT12H")
    parts = {name: int(digits) for name, digits in match.groupdict(default="0").items() if name != "fraction"}
    minutes = (parts["days"] * 24 + parts["hours"]) * 60 + parts["minutes"]
    return (minutes * 60 + parts["seconds"]) * 1000 + int((match["fraction"] or "0").ljust(3, "0")[:3])
