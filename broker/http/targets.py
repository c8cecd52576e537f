"""The target of a request (path, query, host), and the check that refuses requests of foreign web pages. Pure.

A path is cut at its slashes before it is decoded, so that a name may contain a slash as ``%2F``.

A page of any site can make its visitor's browser send requests to this machine. A plain listener has no login, so two
rules keep such pages out; neither affects clients that are not browsers:

- The header Host must name this broker: a loopback name or address, the address that the connection was made to, the listener's
  own or advertised host, or one of `http_allowed_hosts`. A site that points its own name at this machine (DNS rebinding), so that
  the browser takes the answers for the site's own, still appears in Host.
- A request that a browser marks as another site's (Origin, Sec-Fetch-Site) is refused. CORS is not supported. Only links to the
  broker's page may be followed from elsewhere: that file is the same for everybody, and no other page can frame it.

So the broker's own pages work, and a page of another port of this machine counts as foreign.
"""

import re
from collections.abc import Collection, Mapping, Sequence

import attrs

from broker.config.open_listeners import is_loopback
from broker.web.routes import BAD_REQUEST, FORBIDDEN, HttpError

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~-]+))(?::\d{0,5})?")
# The maximum number of parameters of a request.
_PARAMETERS_MAX = 100


@attrs.frozen
class Target:
    segments: Sequence[str]
    query: Mapping[str, str]
    authority: str | None  # if the target is a whole URL


def parse_target(text: bytes) -> Target:
    """Raises HttpError."""
    target = text.decode("latin-1")
    authority = None
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        authority, target = absolute[1], absolute[2] or "/"
    path, _, query = target.partition("?")
    if not path.startswith("/") or "#" in target:
        raise HttpError(BAD_REQUEST, "The target of the request is no path.")
    segments = path[1:].split("/")
    if len(segments) > 1 and not segments[-1]:
        del segments[-1]  # as most servers, Pulsar's included, do not tell /a from /a/
    return Target([decoded(segment) for segment in segments], parse_query(query), authority)


def parse_query(text: str) -> Mapping[str, str]:
    """Raises HttpError."""
    pairs = [pair for pair in text.split("&", _PARAMETERS_MAX) if pair]
    if len(pairs) > _PARAMETERS_MAX:
        raise HttpError(BAD_REQUEST, f"The request has more than {_PARAMETERS_MAX} parameters.")
    query = {}
    for pair in pairs:
        name, _, value = pair.replace("+", " ").partition("=")
        query[decoded(name)] = decoded(value)
    return query


def decoded(text: str) -> str:
    """Percent-decoded. Raises HttpError if the result is not UTF-8."""
    if "%" not in text and text.isascii():
        return text
    try:
        return _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), text.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise HttpError(BAD_REQUEST, "The target of the request is not UTF-8.") from None


def host_of(authority: str) -> str | None:
    """The host of ``host:port`` in lower case, without brackets and a final dot; None if it has another form."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    return (match[1] or match[2]).lower().removesuffix(".")


_ORIGIN = re.compile(r"https?://(.+)")
# Sec-Fetch-Site of a request that the user has made, or that came from a page of this origin.
_OWN = ("same-origin", "none")


def check(
    headers: Mapping[str, str], authority: str | None, local: str, allowed: Collection[str], *, of_page: bool = False
) -> None:
    """Raises HttpError. ``authority``: if the target is a whole URL, which replaces Host. ``local``: the broker's
    address on this connection. ``allowed``: hosts in lower case. ``of_page``: the broker's page itself is asked for."""
    named = headers.get("host") if authority is None else authority
    if named is not None:  # else it is HTTP/1.0, which no browser speaks
        host = host_of(named)
        if host is None:
            raise HttpError(BAD_REQUEST, "The header Host is no host and port.")
        if not (is_loopback(host) or host == local.lower() or host in allowed):
            raise HttpError(
                FORBIDDEN,
                "The header Host is not a name of this broker: use its address, or add the name to http_allowed_hosts.",
            )
    origin = headers.get("origin")
    if origin is not None:
        match = _ORIGIN.fullmatch(origin)
        if match is None or named is None or match[1].lower() != named.lower():
            raise HttpError(FORBIDDEN, "Requests of other origins are refused.")
    if headers.get("sec-fetch-site", "none").lower() not in _OWN and not (of_page and _is_visit(headers)):
        raise HttpError(FORBIDDEN, "Requests of other sites are refused.")


def _is_visit(headers: Mapping[str, str]) -> bool:
    """Whether the browser shows the answer in a tab of its own, because somebody has followed a link."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
