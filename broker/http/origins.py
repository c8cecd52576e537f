"""Which requests may be a web page's: those are refused. Pure.

A page of any site can make its visitor's browser send requests to this machine. There is no login at a plain listener, so two
rules keep such pages out; both cost a client that is no browser nothing:

- The header Host must name this broker: a loopback name or address, the address that the connection was made to, the listener's
  own or advertised host, or one of `http_allowed_hosts`. A site that points its own name at this machine (DNS rebinding), so that
  the browser takes the answers for the site's own, is still named in Host.
- A request that a browser marks as another site's (Origin, Sec-Fetch-Site) is refused. There is no CORS.

So the broker's own pages work, and a page of another port of this machine counts as another site's.
"""

import re
from collections.abc import Collection, Mapping

from broker.config.open_listeners import is_loopback
from broker.http.targets import host_of
from broker.network.routes import BAD_REQUEST, FORBIDDEN, HttpError

_ORIGIN = re.compile(r"https?://(.+)")
# What a browser says of a request that the user has made, or that came from a page of this very origin.
_OWN = ("same-origin", "none")


def check(headers: Mapping[str, str], authority: str | None, local: str, allowed: Collection[str]) -> None:
    """Raises HttpError. ``authority``: of a target that is a whole URL, which stands for Host. ``local``: the broker's address on
    this connection. ``allowed``: hosts in lower case."""
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
    if headers.get("sec-fetch-site", "none").lower() not in _OWN:
        raise HttpError(FORBIDDEN, "Requests of other sites are refused.")
