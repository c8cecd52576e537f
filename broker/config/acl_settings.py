"""Settings of the authorizer.

Tests: tests/security/test_security.py.
"""

import attrs

from broker.config.setting import KAFKA, setting


@attrs.frozen(kw_only=True, slots=False)
class AclSettings:
    """ACLs."""

    authorizer_class_name: str | None = setting(
        None,
        choices=("acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        doc="Ask ACLs for everything that a client does. `acl` and the name of Kafka's own class mean the same. Unset: every "
        "client may do everything.",
        reason="Kafka's default. With it and without ACLs only super users may do anything.",
    )
    super_users: str = setting(
        "",
        doc="Principals that may do everything, whatever the ACLs say, separated by `;`: `User:admin;User:CN=ops,O=example`.",
        reason="Kafka's default. Somebody has to create the first ACL.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False,
        doc="Allow everybody what no ACL covers. As soon as there is any ACL for a resource, it is denied to all others.",
        reason=KAFKA,
    )
    acls_max: int = setting(
        1_000_000,
        kafka=None,
        unit="ACLs",
        least=0,
        doc="How many ACLs there may be. What would exceed it is refused with POLICY_VIOLATION; ACLs that exist stay in force.",
        reason="They are kept in memory: 100,000 take some 35 MB, and half a second at the start. Kafka has no limit.",
    )
