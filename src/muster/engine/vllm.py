"""A replica behind HTTP: vLLM, or an engine of ours that speaks its dialect.

Law: every call has a deadline, and every way to fail is an `EngineError` that says which replica and why.
Cancelling a call closes its connection, which aborts the request in the engine.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, NoReturn, Self

import aiohttp

from muster import clock
from muster.engine import wire
from muster.engine.pieces import Piece
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.errors import EngineError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version


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
        `generate`, and of a pause that waits for requests; control: of all else.
        """
        self.name = name
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session_header = session_header
        self._request_timeout_s, self._control_timeout_s = request_timeout_s, control_timeout_s
        self._death: str | None = None
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    def pronounce_dead(self, reason: str) -> None:
        """Whoever runs the engine saw it end: calls fail from now on, and say `reason`."""
        self._death = reason

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        body = wire.generate_to_json(tokens, sampling, uuid.uuid4().hex)
        answer = await self._call(
            "POST",
            "/inference/v1/generate",
            body,
            headers=wire.session_headers(session, self._session_header),
            timeout_s=self._request_timeout_s,
        )
        return self._parsed(lambda: wire.completion_from_json(answer, self.name))

    async def stream(self, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
        """As `generate`, in pieces; close it to abort the request."""
        path = "/inference/v1/generate"
        body = wire.generate_to_json(tokens, sampling, uuid.uuid4().hex, stream=True)
        headers = {**self._headers, **wire.session_headers(session, self._session_header)}
        end = clock.now() + self._request_timeout_s
        last = False
        async with AsyncExitStack() as stack:
            async with self._failing(path, self._request_timeout_s):
                request = self._http.request("POST", self._url + path, json=body, headers=headers)
                response = await stack.enter_async_context(request)
                if response.status != 200:
                    self._refuse(path, response.status, await response.read())
            events = _events(response.content)
            while not last:
                async with self._failing(path, end - clock.now(), said=self._request_timeout_s):
                    data = await anext(events, None)
                if data is None:
                    raise EngineError(f"{self.name} {path}: the stream broke off")
                event = self._parsed(lambda data=data: json.loads(data))
                if "error" in event:
                    raise EngineError(f"{self.name} {path}: {event['error']['message']}")
                piece = self._parsed(lambda event=event: wire.piece_from_json(event, self.name))
                last = piece.last
                yield piece

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        answer = await self._call("POST", "/score", {"token_ids": tokens.tolist(), "temperature": temperature})
        return self._parsed(lambda: wire.scores_from_json(answer))

    async def statistics(self) -> EngineStatistics:
        answer = await self._call("GET", "/statistics")
        return self._parsed(lambda: wire.statistics_from_json(answer))

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        return None

    async def stage(self, publication: Publication) -> Staged:
        await self._call("POST", "/start_weight_update", {})
        answer = await self._call("POST", "/update_weights", wire.publication_to_json(publication))
        return self._parsed(lambda: wire.staged_from_json(answer))

    async def pause(self, in_flight: InFlight) -> Pause:
        waits = in_flight is InFlight.FINISH
        path = f"/pause?mode={wire.pause_mode(in_flight)}&clear_cache=false"
        answer = await self._call("POST", path, timeout_s=self._request_timeout_s if waits else None)
        return self._parsed(lambda: wire.pause_from_json(answer))

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        body = {**wire.version_to_json(version), "cache": cache.value}
        answer = await self._call("POST", "/finish_weight_update", body)
        return self._parsed(lambda: wire.version_from_json(answer))

    async def resume(self) -> None:
        await self._call("POST", "/resume")

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """One exchange, answered by JSON with status 200, or an `EngineError`."""
        async with (
            self._failing(path, timeout_s or self._control_timeout_s),
            self._http.request(
                method, self._url + path, json=body, headers={**self._headers, **(headers or {})}
            ) as response,
        ):
            status, raw = response.status, await response.read()
        if status != 200:
            self._refuse(path, status, raw)
        return self._parsed(lambda: json.loads(raw))

    @asynccontextmanager
    async def _failing(self, path: str, deadline_s: float, *, said: float | None = None) -> AsyncGenerator[None]:
        """What fails within, or takes longer, fails as an `EngineError`. said: the deadline that the error names."""
        if self._death is not None:
            raise EngineError(f"{self.name} is dead: {self._death}")
        try:
            async with clock.timeout(deadline_s):
                yield
        except TimeoutError:
            raise EngineError(f"{self.name} {path}: no answer within {said or deadline_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            # the process's own last words arrive a moment after its connections break
            await clock.sleep(0.05)
            raise EngineError(f"{self.name} {path}: {self._death or error!r}") from None

    def _refuse(self, path: str, status: int, raw: bytes) -> NoReturn:
        raise EngineError(f"{self.name} {path}: {status} {_message(raw)}", {"status": status})

    def _parsed(self, parse: Any) -> Any:
        try:
            return parse()
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise EngineError(f"{self.name}: an answer that is not of the dialect ({error!r})") from None


async def _events(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """The data of server-sent events, however long one is; `[DONE]` and comments are passed over."""
    rest = b""
    async for chunk in content.iter_any():
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            data = event.strip().removeprefix(b"data:").strip()
            if data.startswith(b"{"):
                yield data


def _message(raw: bytes) -> str:
    """The message of an error answer, or its beginning when it has none."""
    try:
        return str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:200].decode(errors="replace")
