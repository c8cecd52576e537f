"""Regular expressions of clients: RE2's, as in Kafka's and Pulsar's brokers.

RE2 takes at most linear time in the length of the text, and the memory of an expression is bounded; Python's own ``re`` promises
neither. google-re2 is a compiled library, which is installed with the broker if it has wheels for every Python of a version.
Elsewhere, as on 3.14, it may be missing. Without it expressions are refused, and everything else works.

Any thread.

Tests: tests/kafka/groups/consumer/test_group_regexes.py, tests/pulsar/topics/test_watches.py.
"""

import importlib.util
from typing import Any, Final

from broker.errors import Refusal

# Imported with the first expression: it takes 2.5 MB, and most brokers never see one.
_INSTALLED: Final = importlib.util.find_spec("re2") is not None  # False where this Python has no wheel

# Bytes for the automata of one expression; a larger expression is refused. RE2's own default is 8 MB.
_MEMORY_MAX: Final = 1 << 20


class InvalidExpression(Refusal):
    """The text is no expression of RE2, or too large; the message says why."""


class NoExpressions(Refusal):
    """google-re2 is not installed."""


def available() -> bool:
    return _INSTALLED


def compile_expression(pattern: str) -> Any:
    """RE2's object. Raises InvalidExpression, NoExpressions. ``pattern``: the caller bounds its length."""
    if not _INSTALLED:
        raise NoExpressions(
            "This broker cannot match regular expressions: install google-re2 where it runs (pip install google-re2), or "
            "subscribe to topics by name."
        )
    import re2

    options = re2.Options()
    options.max_mem = _MEMORY_MAX
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        raise InvalidExpression(str(reason)[:200]) from None
