"""Subjects as Java writes them. The expected texts are those of X500Principal.getName() of Java 17, which has also written
500 random subjects in the same way."""

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID as N

from broker.security.principal import java_name

A = x509.NameAttribute


def name(*attributes: x509.NameAttribute) -> x509.Name:
    return x509.Name(attributes)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (name(A(N.COMMON_NAME, "alice")), "CN=alice"),
        (
            name(A(N.COUNTRY_NAME, "DE"), A(N.ORGANIZATION_NAME, "ACME"), A(N.COMMON_NAME, "alice")),
            "CN=alice,O=ACME,C=DE",
        ),
        (
            name(
                A(N.DOMAIN_COMPONENT, "com"),
                A(N.STREET_ADDRESS, "1 Road"),
                A(N.LOCALITY_NAME, "Town"),
                A(N.STATE_OR_PROVINCE_NAME, "State"),
                A(N.ORGANIZATIONAL_UNIT_NAME, "Unit"),
                A(N.USER_ID, "u1"),
            ),
            "UID=u1,OU=Unit,ST=State,L=Town,STREET=1 Road,DC=com",
        ),
        (name(A(N.COMMON_NAME, 'a,b+c"d\\e<f>g;h=i#j')), 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j'),
        (name(A(N.COMMON_NAME, "  two  spaces ")), "CN=\\ \\ two  spaces\\ "),
        (name(A(N.COMMON_NAME, " ")), "CN=\\ "),
        (name(A(N.COMMON_NAME, "\rcr\r")), "CN=\\\rcr\\\r"),
        (name(A(N.COMMON_NAME, "a\0b")), "CN=a\\00b"),
        (name(A(N.COMMON_NAME, "Jürgen Ω 漢 \U0001f600")), "CN=Jürgen Ω 漢 \U0001f600"),
        (name(A(N.COMMON_NAME, "a\nb\tc")), "CN=a\nb\tc"),
        # What has no keyword is a number, and the DER of its value.
        (
            name(A(N.EMAIL_ADDRESS, "a@b.c", _ASN1Type.IA5String), A(N.COMMON_NAME, "x")),
            "CN=x,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        (name(A(N.SERIAL_NUMBER, "12"), A(N.GIVEN_NAME, "ü")), "2.5.4.42=#0c02c3bc,2.5.4.5=#13023132"),
        (name(A(x509.ObjectIdentifier("2.999.1"), "x")), "2.999.1=#0c0178"),
        (name(A(x509.ObjectIdentifier("2.999.2"), "x" * 200)), f"2.999.2=#0c81c8{'78' * 200}"),
        # Several attributes in one part keep their order.
        (
            x509.Name(
                [
                    x509.RelativeDistinguishedName([A(N.ORGANIZATION_NAME, "O1")]),
                    x509.RelativeDistinguishedName([A(N.COMMON_NAME, "cn"), A(N.USER_ID, "id")]),
                ]
            ),
            None,
        ),
        (name(), ""),
    ],
)
def test_a_subject_is_written_as_java_writes_it(subject: x509.Name, expected: str | None) -> None:
    if expected is None:  # DER sorts the attributes of a set
        assert java_name(subject) in ("CN=cn+UID=id,O=O1", "UID=id+CN=cn,O=O1")
    else:
        assert java_name(subject) == expected
