"""``ssl.principal.mapping.rules``: how the subject of a certificate becomes the name of a principal. Kafka's SslPrincipalMapper.

A rule is ``DEFAULT`` or ``RULE:pattern/replacement/`` with an optional ``L`` or ``U`` after it. The first whose pattern matches
the whole subject is taken; ``$1`` in the replacement is what the first group has matched. Patterns are Python's regular
expressions, which are Java's in all that such rules use. They are the operator's; the subject is a client's, so its length is
bounded.
"""

import re
from collections.abc import Sequence

import attrs

from broker.errors import ConfigError

# Characters of a subject. A pattern of the operator's may take time that grows with a power of the length.
SUBJECT_MAX = 1024

_PIECE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_PIECE})\s*(,\s*|$)", re.DOTALL)
_PARSER = re.compile(_PIECE, re.DOTALL)
_REPLACEMENT = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class NoRuleMatches(Exception):
    """The client gets no name, and no access."""


@attrs.frozen
class Rule:
    """``pattern`` None: DEFAULT."""

    pattern: "re.Pattern[str] | None" = None
    replacement: str = ""
    case: str = ""  # L, U, or nothing

    def apply(self, subject: str) -> str | None:
        """None if it does not match."""
        if self.pattern is None:
            return subject
        if not self.pattern.fullmatch(subject):
            return None
        result = self.pattern.sub(self._expand, subject)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result

    def _expand(self, match: "re.Match[str]") -> str:
        groups = self.pattern.groups if self.pattern is not None else 0

        def one(part: "re.Match[str]") -> str:
            if part[2] is None:
                return part[1]
            digits = part[2]
            used = len(digits)  # as many digits as make a group that there is; the rest is text
            while used > 1 and int(digits[:used]) > groups:
                used -= 1
            if int(digits[:used]) > groups:
                return f"${digits}"
            return (match[int(digits[:used])] or "") + digits[used:]

        return _REPLACEMENT.sub(one, self.replacement)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Raises ConfigError."""
    rules = []
    for found in _SPLITTER.finditer(text.strip()):
        match = _PARSER.match(found[1])
        if match is None or match.end() != len(found[1]):
            raise ConfigError(
                f"Correct ssl_principal_mapping_rules at {found[1]!r}: a rule is DEFAULT or RULE:pattern/replacement/ with "
                "L, U or nothing after it."
            )
        if match[1] is not None:
            rules.append(Rule())
        elif match[2] is not None:
            try:
                rules.append(Rule(re.compile(match[2]), match[3], match[4]))
            except re.error as error:
                raise ConfigError(
                    f"Correct the pattern {match[2]!r} in ssl_principal_mapping_rules: {error.msg}."
                ) from None
    return tuple(rules)


def map_subject(rules: Sequence[Rule], subject: str) -> str:
    """Raises NoRuleMatches."""
    if len(subject) <= SUBJECT_MAX:
        for rule in rules:
            name = rule.apply(subject)
            if name is not None:
                return name
    raise NoRuleMatches(f"no rule of ssl_principal_mapping_rules matches {subject[:SUBJECT_MAX]!r}")
