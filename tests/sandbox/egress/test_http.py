"""Heads of requests and responses: what is forwarded, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.sandbox.egress import http
from muster.sandbox.egress.http import BadRequest, parse


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode()


def test_connect_is_a_tunnel() -> None:
    request = parse(head("CONNECT Example.org:443 HTTP/1.1", "Host: example.org:443"))
    assert (request.host, request.port, request.forward) == ("example.org", 443, None)


def test_a_request_is_forwarded_in_the_form_for_the_server_and_closes_its_connection() -> None:
    request = parse(head("GET http://x.org/a?b#c HTTP/1.1", "Accept: */*", "Connection: keep-alive, X-Hop", "X-Hop: 1"))
    assert (request.host, request.port, request.body_bytes) == ("x.org", 80, 0)
    assert request.forward == head("GET /a?b HTTP/1.1", "Host: x.org", "Accept: */*", "Connection: close")


def test_the_host_that_was_judged_is_the_host_that_is_asked_for() -> None:
    request = parse(head("GET http://user:word@x.org:8080 HTTP/1.1", "Host: secret.corp"))
    assert request.forward == head("GET / HTTP/1.1", "Host: x.org:8080", "Connection: close")


def test_a_client_cannot_have_the_length_of_its_body_dropped() -> None:
    request = parse(head("POST http://x.org/ HTTP/1.1", "Connection: content-length", "Content-Length: 3"))
    assert request.body_bytes == 3
    assert b"Content-Length: 3" in (request.forward or b"")


def test_a_chunked_body_goes_on_until_the_client_stops() -> None:
    assert parse(head("POST http://x.org/ HTTP/1.1", "Transfer-Encoding: chunked")).body_bytes is None


@pytest.mark.parametrize(
    "lines",
    [
        ("GET / HTTP/1.1", "Host: x.org"),  # to a server, not to a proxy
        ("GET https://x.org/ HTTP/1.1",),
        ("GET ftp://x.org/ HTTP/1.1",),
        ("GET http:///path HTTP/1.1",),
        ("GET http://[::1/ HTTP/1.1",),
        ("GET http://x.org:99999/ HTTP/1.1",),
        ("GET http://x.org/ HTTP/2",),
        ("GET http://x.org/",),
        ("CONNECT x.org:port HTTP/1.1",),
        ("GET http://x.org/ HTTP/1.1", " folded: 1"),
        ("GET http://x.org/ HTTP/1.1", "Name : 1"),
        ("GET http://x.org/ HTTP/1.1", "no colon"),
        ("GET http://x.org/ HTTP/1.1", "A: 1\nHost: other"),
        ("POST http://x.org/ HTTP/1.1", "Content-Length: 1", "Content-Length: 2"),
        ("POST http://x.org/ HTTP/1.1", "Content-Length: 1", "Transfer-Encoding: chunked"),
        ("POST http://x.org/ HTTP/1.1", "Content-Length: -1"),
    ],
)
def test_what_is_odd_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest):
        parse(head(*lines))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_are_refused(junk: bytes) -> None:
    for data in (junk, b"GET http://" + junk + b" HTTP/1.1" + http.END, b"CONNECT " + junk + b" HTTP/1.1" + http.END):
        try:
            parse(data)
        except BadRequest:
            continue


def test_a_response_ends_with_its_connection_whatever_the_server_says() -> None:
    given_head = head("HTTP/1.1 200 OK", "Connection: keep-alive", "Keep-Alive: 5", "Content-Length: 2")
    assert http.response(given_head) == head("HTTP/1.1 200 OK", "Content-Length: 2", "Connection: close")
    with pytest.raises(BadRequest):
        http.response(head("SSH-2.0-OpenSSH"))


def test_a_head_that_another_follows_is_known() -> None:
    assert http.interim(head("HTTP/1.1 100 Continue"))
    assert not http.interim(head("HTTP/1.1 101 Switching Protocols"))
    assert not http.interim(head("HTTP/1.1 200 OK"))


def test_an_answer_says_its_sentence_as_the_reason_and_cannot_be_split() -> None:
    said = http.answer(403, "no\r\nSet-Cookie: x ü")
    assert said.startswith(b"HTTP/1.1 403 no  Set-Cookie: x ?\r\n")
    assert said.endswith(http.END + b"no  Set-Cookie: x ?\n")
