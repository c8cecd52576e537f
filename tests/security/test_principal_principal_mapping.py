"""The rules of ssl.principal.mapping.rules; the cases are those of Kafka's SslPrincipalMapperTest, and Java's own for ``$``."""

import pytest

from broker.errors import ConfigError
from broker.security.principal import SUBJECT_MAX, NoRuleMatches, map_subject, parse_rules

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        (RULES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (RULES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (RULES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (RULES, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (RULES, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("DEFAULT", "CN=alice", "CN=alice"),
        ("", "CN=alice", None),
        ("RULE:^CN=(.*)$/$1/", "CN=Alice", "Alice"),
        ("RULE:^OU=(.*)$/$1/", "CN=Alice", None),
        ("RULE:CN=(\\w+)/$1/", "CN=Alice,O=x", None),  # the whole subject has to match
        ("RULE:^(.*)=(.*)$/$2-$1/,DEFAULT", "a=b", "b-a"),
        ("RULE:^(.*)=(.*)$/$0/", "a=b", "a=b"),
        ("RULE:^(.*)=(.*)$/$1@$4/", "a=b", "a@$4"),
        ("RULE:^(.*)=(.*)$/$21/", "a=b", "b1"),
        ("RULE:^(.*)=(.*)$/\\$1/", "a=b", "$1"),
        ("RULE:^(.*)=(.*)$/\\/$1/", "a=b", "/a"),
        ("RULE:^a\\/(.*)$/$1/", "a/b", "b"),
        ("RULE:^(a)?b$/x$1/", "b", "x"),
        ("RULE:^CN=([^,]*),.*$/$1/ , DEFAULT", "CN=a,O=b", "a"),
        ("RULE:^CN=(x{2,3}),.*$/$1/L", "CN=xx,O=b", "xx"),
    ],
)
def test_the_first_rule_that_matches_makes_the_name(rules: str, subject: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(NoRuleMatches, match="no rule"):
            map_subject(parse_rules(rules), subject)
    else:
        assert map_subject(parse_rules(rules), subject) == name


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "RULE:CN=(.*?),OU=ServiceUsers.*",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/LU",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:(/$1/",
    ],
)
def test_invalid_rule_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"^Correct .*ssl_principal_mapping_rules"):
        parse_rules(rules)


def test_a_subject_that_is_too_long_matches_nothing() -> None:
    with pytest.raises(NoRuleMatches):
        map_subject(parse_rules("DEFAULT"), "CN=" + "x" * SUBJECT_MAX)
