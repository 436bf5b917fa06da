"""An engine behind HTTP, in the dialect of `wire`.

Law: translates and nothing else. A malformed body is 400 and names the field: every replica would refuse it. What the
engine cannot do now is 503: another one may. A client that goes away has its request aborted. Every path but /health
needs the bearer token, if one is set.
"""

from __future__ import annotations

import asyncio
import hmac
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import numpy as np
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from muster import clock
from muster.engine.http import wire
from muster.engine.pieces import Piece, after
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.errors import EngineError, PublicationError, UserError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

Body = TypeVar("Body", bound=BaseModel)

MAX_BODY_BYTES = 64 << 20
_EVENTS = {"Content-Type": "text/event-stream"}
PIECE_EVERY_S = 1.0
"""How often a stream says what is new: as much is lost at most when the server is."""


class ServedEngine(Protocol):
    """Protocol of an engine that is served. Cancelling `generate` aborts the request."""

    name: str

    async def generate(self, request_id: str, tokens: Ints, sampling: Sampling, session: Session) -> Completion: ...

    async def progress(self, request_id: str, start: int) -> Completion | None:
        """Tokens that a running request has sampled from its token `start` on; None: nothing yet."""
        ...

    async def score(self, tokens: Ints, temperature: float) -> Scores: ...

    async def statistics(self, *, take_intervals: bool) -> EngineStatistics: ...

    async def stage(self, publication: Publication) -> Staged: ...

    async def pause(self, in_flight: InFlight, *, clear_cache: bool) -> Pause: ...

    async def commit(self, version: Version, cache: CachePolicy) -> Version: ...

    async def resume(self) -> None: ...

    async def abort(self, ids: list[str] | None) -> int: ...

    async def reset_cache(self, *, preempt: bool) -> None: ...

    async def paused(self) -> bool: ...

    async def version(self) -> Version: ...


def application(engine: ServedEngine, token: str | None) -> web.Application:
    """The aiohttp application. Run it with `handler_cancellation=True`, or clients cannot abort by leaving."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors, _authorised(token)])
    handlers = _Handlers(engine)
    app.add_routes(
        [
            web.post("/inference/v1/generate", handlers.generate),
            web.post("/score", handlers.score),
            web.post("/pause", handlers.pause),
            web.post("/resume", handlers.resume),
            web.get("/is_paused", handlers.is_paused),
            web.post("/abort_requests", handlers.abort_requests),
            web.post("/reset_prefix_cache", handlers.reset_prefix_cache),
            web.post("/start_weight_update", handlers.start_weight_update),
            web.post("/update_weights", handlers.update_weights),
            web.post("/finish_weight_update", handlers.finish_weight_update),
            web.get("/weight_info", handlers.weight_info),
            web.get("/statistics", handlers.statistics),
            web.get("/metrics", handlers.metrics),
            web.get("/health", handlers.health),
        ]
    )
    return app


class _Handlers:
    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request, wire.GenerateBody)
        request_id = body.request_id or uuid.uuid4().hex
        session = Session(id=request.headers.get(wire.SESSION_HEADER, ""))
        sampling = body.sampling_params.sampling()
        answer = self._engine.generate(request_id, _tokens(body.token_ids), sampling, session)
        if body.stream:
            return await self._stream(request, request_id, len(body.token_ids), asyncio.ensure_future(answer))
        return _json(wire.completion_to_json(await answer, request_id, len(body.token_ids)))

    async def _stream(
        self, request: web.Request, request_id: str, prompt_tokens: int, answer: asyncio.Task[Completion]
    ) -> web.StreamResponse:
        """Stream what is new, now and then, and then the rest. Before the first piece an error is an error's answer."""
        response = web.StreamResponse(headers=_EVENTS)
        sent = 0
        try:
            while True:
                with suppress(TimeoutError):
                    async with clock.timeout(PIECE_EVERY_S):
                        await asyncio.shield(answer)
                last = answer.done()
                new = after(answer.result(), sent) if last else await self._engine.progress(request_id, sent)
                if new is None:
                    continue
                event = _event(wire.piece_to_json(Piece(completion=new, last=last), request_id, prompt_tokens))
                if last and not response.prepared:
                    return web.Response(body=event, headers=_EVENTS)
                if not response.prepared:
                    await response.prepare(request)
                sent += len(new.tokens_T)
                await response.write(event)
                if last:
                    return response
        except EngineError as error:
            if not response.prepared:
                raise
            await response.write(_event(_problem(503, str(error))))
            return response
        finally:
            answer.cancel()

    async def score(self, request: web.Request) -> web.Response:
        body = await _body(request, wire.ScoreBody)
        scores = await self._engine.score(_tokens(body.token_ids), body.temperature)
        return _json(wire.scores_to_json(scores))

    async def pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in wire.PAUSE_MODES:
            raise UserError(f"mode: {mode!r} is not one of {', '.join(wire.PAUSE_MODES)}")
        clear = _flag(request, "clear_cache")
        pause = await self._engine.pause(wire.PAUSE_MODES[mode], clear_cache=clear)
        return web.json_response(wire.pause_to_json(pause))

    async def resume(self, request: web.Request) -> web.Response:
        await self._engine.resume()
        return web.json_response({"status": "resumed"})

    async def is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": await self._engine.paused()})

    async def abort_requests(self, request: web.Request) -> web.Response:
        body = await _body(request, wire.AbortBody)
        return web.json_response({"aborted": await self._engine.abort(body.request_ids)})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        await self._engine.reset_cache(preempt=_flag(request, "reset_running_requests"))
        return web.json_response({"status": "reset"})

    async def start_weight_update(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "started"})

    async def update_weights(self, request: web.Request) -> web.Response:
        body = await _body(request, wire.UpdateBody)
        staged = await self._engine.stage(body.update_info.publication())
        return web.json_response(wire.staged_to_json(staged))

    async def finish_weight_update(self, request: web.Request) -> web.Response:
        body = await _body(request, wire.FinishBody)
        return web.json_response(wire.version_to_json(await self._engine.commit(body.version, body.cache)))

    async def weight_info(self, request: web.Request) -> web.Response:
        return web.json_response(wire.version_to_json(await self._engine.version()))

    async def statistics(self, request: web.Request) -> web.Response:
        statistics = await self._engine.statistics(take_intervals=True)
        return _json(wire.statistics_to_json(statistics))

    async def metrics(self, request: web.Request) -> web.Response:
        statistics = await self._engine.statistics(take_intervals=False)
        return web.Response(text=wire.statistics_to_prometheus(statistics))

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except UserError as error:
        return _error(400, str(error))
    except (EngineError, PublicationError) as error:
        return _error(503, str(error))


def _authorised(token: str | None) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token is None or request.path == "/health" or hmac.compare_digest(given, token):
            return await handler(request)
        return _error(401, "missing or wrong bearer token")

    return check


async def _body(request: web.Request, kind: type[Body]) -> Body:
    """The request's JSON body. Raises `UserError` naming the field that is wrong."""
    raw = await request.read()
    try:
        return kind.model_validate_json(raw or b"{}")
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors()[:3]]
        raise UserError("; ".join(problems)) from None


def _json(body: Mapping[str, Any]) -> web.Response:
    """An answer with thousands of numbers: the standard library takes five times as long."""
    return web.Response(body=to_json(body), content_type="application/json")


def _event(data: Mapping[str, Any]) -> bytes:
    """Of a stream."""
    return b"data: " + to_json(data) + b"\n\n"


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise UserError(f"{name}: {value!r} is not true or false")
    return value in ("true", "1")


def _tokens(ids: list[int]) -> Ints:
    try:
        return np.array(ids, dtype=np.int32)
    except OverflowError:
        raise UserError("token_ids: an id does not fit 32 bits") from None


def _error(status: int, message: str) -> web.Response:
    return web.json_response(_problem(status, message), status=status)


def _problem(status: int, message: str) -> dict[str, dict[str, str | int]]:
    return {"error": {"message": message, "code": status}}
