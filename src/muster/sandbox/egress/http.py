"""Heads of HTTP messages, as far as a proxy must understand them. Law: pure; what is odd is refused, not guessed.

    CONNECT x.org:443             ─► a tunnel
    GET http://x.org/path         ─► GET /path, Host: x.org, one request for each connection

One request for each connection: where a body ends is then the server's business alone, and no second request
can follow the first to a host that nobody judged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from muster.sandbox.egress import rules

END = b"\r\n\r\n"
HEAD_BYTES = 64 * 1024  # the longest head that is read
# By hand: the standard library drops what it takes for typing errors, and what is judged must be what is sent.
_URL = re.compile(r"(?i:http)://(?P<authority>[^/?#\x00-\x20\x7f]+)(?P<path>[^#\x00-\x20\x7f]*)(#.*)?")
_OWN_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer", b"upgrade")
)
_MEANINGFUL = frozenset((b"host", b"content-length", b"transfer-encoding"))  # never dropped at a client's word


class BadRequest(ValueError):
    """Error of a client's request that this proxy does not serve; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """Request to be passed on: its target, and what to send there. `forward` is None for a tunnel.

    `body_bytes`: how much follows the head; None: until the client stops (a chunked body).
    """

    host: str
    port: int
    forward: bytes | None
    body_bytes: int | None = 0


def parse(head: bytes) -> ProxyRequest:
    """A request head, blank line included. Raises `BadRequest`."""
    line, *fields = head.removesuffix(END).split(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not line.isascii():
        raise BadRequest("this is no HTTP/1 request")
    method, target = words[0], words[1].decode("ascii")
    if method == b"CONNECT":
        host, port = _authority(target, default=443)
        return ProxyRequest(host=host, port=port, forward=None)
    url = _URL.fullmatch(target)
    if url is None:
        raise BadRequest("this is a proxy: ask for http://host/path, or CONNECT host:port")
    host, port = _authority(url["authority"].rpartition("@")[2], default=80)
    path = url["path"] if url["path"].startswith("/") else "/" + url["path"]
    named = f"[{host}]" if ":" in host else host
    authority = named if port == 80 else f"{named}:{port}"
    kept = [f for f in _kept(fields) if _key(f) != b"host"]
    first = method + b" " + path.encode() + b" HTTP/1.1"
    return ProxyRequest(
        host=host,
        port=port,
        forward=_join(first, [b"Host: " + authority.encode(), *kept, b"Connection: close"]),
        body_bytes=_body_bytes(kept),
    )


def response(head: bytes) -> bytes:
    """A server's response head as the client gets it: the connection ends with it. Raises `BadRequest`."""
    first, *fields = head.removesuffix(END).split(b"\r\n")
    if not first.startswith(b"HTTP/1."):
        raise BadRequest("the server speaks no HTTP/1")
    return _join(first, [*_kept(fields), b"Connection: close"])


def interim(head: bytes) -> bool:
    """Whether another head follows this one (100 Continue, 103 Early Hints)."""
    return head[9:10] == b"1" and head[9:12] != b"101"


def answer(status: int, sentence: str) -> bytes:
    """The proxy's own word. The sentence is the reason phrase too: of a refused tunnel clients show that alone."""
    text = sentence.encode("ascii", "replace").replace(b"\r", b" ").replace(b"\n", b" ")
    body = text + b"\n"
    fields = [b"Content-Type: text/plain", b"Content-Length: %d" % len(body), b"Connection: close"]
    return _join(b"HTTP/1.1 %d %s" % (status, text), fields) + body


def _authority(text: str, *, default: int) -> tuple[str, int]:
    try:
        host, port = rules.split_port(text)
        return rules.normal(host), port or default
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _kept(fields: list[bytes]) -> list[bytes]:
    """Without those that speak of this one connection (RFC 9110, 7.6.1)."""
    named = {part.strip().lower() for f in fields if _key(f) == b"connection" for part in _value(f).split(b",")}
    dropped = named - _MEANINGFUL | _OWN_CONNECTION
    return [f for f in fields if _key(f) not in dropped]


def _body_bytes(fields: list[bytes]) -> int | None:
    lengths = [_value(f) for f in fields if _key(f) == b"content-length"]
    codings = [f for f in fields if _key(f) == b"transfer-encoding"]
    if len(lengths) > 1 or (lengths and codings):
        raise BadRequest("the length of the body is not clear")
    if codings:
        return None
    if not lengths:
        return 0
    if not (lengths[0].isdigit() and len(lengths[0]) < 19):
        raise BadRequest("the length of the body is no number")
    return int(lengths[0])


def _key(field: bytes) -> bytes:
    name, colon, _ = field.partition(b":")
    if not colon or name.split() != [name] or any(b in field for b in (b"\r", b"\n", b"\0")):
        raise BadRequest("a header line is not of the form 'Name: value'")
    return name.lower()


def _value(field: bytes) -> bytes:
    return field.partition(b":")[2].strip()


def _join(first: bytes, fields: list[bytes]) -> bytes:
    return b"\r\n".join([first, *fields]) + END
