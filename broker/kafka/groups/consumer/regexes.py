"""Regular expressions that members subscribe with, matched by the broker against the names of all topics.

``RegexTask`` is an effect of a ``ConsumerGroup``. The matching takes about 1 us for each name and expression, so it is done
outside the group's lock, in slices, on a thread that may be busy for a while.

Expressions are RE2's (``broker/expressions.py``).

Tests: tests/kafka/groups/consumer/test_group_regexes.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from broker.errors import RequestError
from broker.expressions import InvalidExpression, NoExpressions, compile_expression
from broker.kafka.groups.consumer.values import TopicsImage
from protocol.kafka.errors import ErrorCode

# Characters of an expression. A list of a hundred names fits.
PATTERN_MAX: Final = 8192
# Names that are matched between two looks at whether somebody else waits: about 1 ms.
_SLICE: Final = 500


def compile_regex(pattern: str) -> Any:
    """RE2's object. Raises RequestError if the expression cannot be used."""
    if len(pattern) > PATTERN_MAX:
        raise RequestError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex has {len(pattern)} characters, and {PATTERN_MAX} are allowed.",
        )
    try:
        return compile_expression(pattern)
    except NoExpressions as error:
        raise RequestError(ErrorCode.invalid_regular_expression, error.message) from None
    except InvalidExpression as error:
        raise RequestError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{pattern[:200]}` is not a valid regular expression: {error.message}.",
        ) from None


@attrs.define(eq=False)
class RegexTask:
    """Effect: call ``run_slice`` until it returns True, with no lock held; take out of ``matches`` what may not be described on
    behalf of ``context``; then hand the task to the group's ``regexes_resolved``.

    ``context``: of the last request that a member with an expression sent, as the handler gave it; None after a restart.
    ``matches``: expression -> names of topics; None until all slices are done, or if it failed, which ``error`` tells.
    """

    patterns: tuple[str, ...]
    topics: TopicsImage
    context: object
    started: float
    matches: Mapping[str, frozenset[str]] | None = None
    error: Exception | None = None
    _slices: Iterator[None] | None = None

    def run_slice(self) -> bool:
        """Match for about a millisecond. True if the task is done, or has failed."""
        if self._slices is None:
            self._slices = self._run()
        try:
            next(self._slices)
        except StopIteration:
            return True
        except Exception as error:
            self.error = error
            return True
        return False

    def _run(self) -> Iterator[None]:
        names = tuple(self.topics.by_name)
        found: dict[str, frozenset[str]] = {}
        for pattern in self.patterns:
            matches = compile_regex(pattern).fullmatch
            topics: list[str] = []
            for start in range(0, len(names), _SLICE):
                topics.extend(name for name in names[start : start + _SLICE] if matches(name))
                yield
            found[pattern] = frozenset(topics)
        self.matches = found
