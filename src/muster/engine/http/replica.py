"""A replica behind HTTP: vLLM, or an engine of ours that speaks its dialect.

Law: every call has a deadline, and every way to fail is an `EngineError` that says which replica and why.
Cancelling a call closes its connection, which aborts the request in the engine.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from muster.engine.http import wire
from muster.engine.http.endpoint import Endpoint
from muster.engine.pieces import Piece
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.errors import EngineError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

_GENERATE = "/inference/v1/generate"


class HttpReplica:
    """Implements `engine.port.Replica`. Use as an async context manager.

    Example:
        async with HttpReplica("replica-0", "http://127.0.0.1:8000", token) as replica:
            completion = await replica.generate(tokens, Sampling(max_tokens=16), Session(id="t1"))
    """

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None = None,
        *,
        session_header: str = wire.SESSION_HEADER,
        request_timeout_s: float = 600.0,
        control_timeout_s: float = 60.0,
    ) -> None:
        """session_header: by which a router in front of servers keeps a session in its place. request_timeout_s: of
        `generate`, of a pause that waits for requests, and of staging, which is as long as the way of the weights;
        control: of all else.
        """
        self.name = name
        self._server = Endpoint(name, url, token, timeout_s=control_timeout_s)
        self._session_header = session_header
        self._request_timeout_s = request_timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()

    def mark_dead(self, reason: str) -> None:
        """Fail all calls from now on, for `reason`: whoever runs the engine saw it end."""
        self._server.mark_dead(reason)

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        body = wire.generate_to_json(tokens, sampling, uuid.uuid4().hex)
        answer = await self._server.call(
            "POST",
            _GENERATE,
            body,
            headers=wire.session_headers(session, self._session_header),
            timeout_s=self._request_timeout_s,
        )
        return self._server.parsed(lambda: wire.completion_from_json(answer, self.name))

    async def stream(self, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
        """As `generate`, in pieces; close it to abort the request."""
        body = wire.generate_to_json(tokens, sampling, uuid.uuid4().hex, stream=True)
        headers = wire.session_headers(session, self._session_header)
        events = self._server.events(_GENERATE, body, headers=headers, timeout_s=self._request_timeout_s)
        async with aclosing(events):
            async for event in events:
                if "error" in event:
                    raise EngineError(f"{self.name} {_GENERATE}: {event['error']['message']}")
                piece = self._server.parsed(lambda event=event: wire.piece_from_json(event, self.name))
                yield piece
                if piece.last:
                    return
        raise EngineError(f"{self.name} {_GENERATE}: the stream broke off")

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        answer = await self._server.call("POST", "/score", {"token_ids": tokens.tolist(), "temperature": temperature})
        return self._server.parsed(lambda: wire.scores_from_json(answer))

    async def statistics(self) -> EngineStatistics:
        answer = await self._server.call("GET", "/statistics")
        return self._server.parsed(lambda: wire.statistics_from_json(answer))

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        return None

    async def stage(self, publication: Publication) -> Staged:
        await self._server.call("POST", "/start_weight_update", {})
        update, limit_s = wire.publication_to_json(publication), self._request_timeout_s
        answer = await self._server.call("POST", "/update_weights", update, timeout_s=limit_s)
        return self._server.parsed(lambda: wire.staged_from_json(answer))

    async def pause(self, in_flight: InFlight) -> Pause:
        waits = in_flight is InFlight.FINISH
        path = f"/pause?mode={wire.pause_mode(in_flight)}&clear_cache=false"
        answer = await self._server.call("POST", path, timeout_s=self._request_timeout_s if waits else None)
        return self._server.parsed(lambda: wire.pause_from_json(answer))

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        body = {**wire.version_to_json(version), "cache": cache.value}
        answer = await self._server.call("POST", "/finish_weight_update", body)
        return self._server.parsed(lambda: wire.version_from_json(answer))

    async def resume(self) -> None:
        await self._server.call("POST", "/resume")
