"""The chat dialect (`/v1/chat/completions`, `/v1/models`) of a server that has no tokenizer.

Law: text becomes about one token for four characters, and a conversation that only grows becomes tokens that only
grow, so the prefix cache behaves as with a real one. A made-up token is written `w<id>` and read back as the same id.
"""

from __future__ import annotations

import re
import uuid
from typing import Any, Literal

import numpy as np
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster import clock
from muster.engine.http import wire
from muster.errors import UserError
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.replies import FIRST_ID
from muster.types import Completion, Ints, Sampling, Session

_PIECES = re.compile(r"w(\d+)(?: |$)|.{1,4}", re.DOTALL)
_MESSAGE_ENDS = 2


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)

    role: str
    content: str = ""


class ChatBody(BaseModel):
    """What a client asks. Unknown fields are ignored, as clients send many."""

    model_config = ConfigDict(frozen=True)

    messages: list[Message] = Field(min_length=1)
    model: str = ""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    seed: int | None = Field(default=None, ge=0)
    stream: Literal[False] = False


def add_chat(app: web.Application, engine: EmulatedEngine) -> None:
    """Serve the chat dialect beside what `server.application` serves, under its token and its errors."""

    async def completions(request: web.Request) -> web.Response:
        try:
            body = ChatBody.model_validate_json(await request.read())
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from None
        tokens = tokens_of(body.messages, engine.config.vocabulary)
        limit = body.max_completion_tokens or body.max_tokens or engine.config.max_model_len
        session = Session(id=request.headers.get(wire.SESSION_HEADER, ""))
        sampling = Sampling(temperature=body.temperature, max_tokens=limit, seed=body.seed)
        name = uuid.uuid4().hex
        completion = await engine.generate(name, tokens, sampling, session)
        return web.json_response(_answer(name, engine.name, completion, len(tokens)))

    async def models(request: web.Request) -> web.Response:
        entry = {"id": engine.name, "object": "model", "max_model_len": engine.config.max_model_len}
        return web.json_response({"object": "list", "data": [entry]})

    app.add_routes([web.post("/v1/chat/completions", completions), web.get("/v1/models", models)])


def tokens_of(messages: list[Message], vocabulary: int) -> Ints:
    """Token ids of a conversation up to where the assistant speaks next.

    With the answer appended as a message, and more, they begin with these and the answer's.
    """
    ids: list[int] = []
    for message in messages:
        ids.extend(_pieces(f"{message.role}\n", vocabulary))
        ids.extend(_pieces(message.content, vocabulary))
        ids.append(_MESSAGE_ENDS)
    ids.extend(_pieces("assistant\n", vocabulary))
    return np.array(ids, dtype=np.int32)


def _pieces(text: str, vocabulary: int) -> list[int]:
    ids: list[int] = []
    for piece in _PIECES.finditer(text):
        known = int(piece[1]) if piece[1] else vocabulary
        made = int.from_bytes(piece[0].encode(), "little") % (vocabulary - FIRST_ID) + FIRST_ID
        ids.append(known if known < vocabulary else made)
    return ids


def _answer(name: str, model: str, completion: Completion, prompt_tokens: int) -> dict[str, Any]:
    tokens = completion.tokens_T.tolist()
    message = {"role": "assistant", "content": " ".join(f"w{token}" for token in tokens)}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(tokens)}
    usage |= {"total_tokens": prompt_tokens + len(tokens)}
    return {
        "id": name,
        "object": "chat.completion",
        "created": int(clock.now()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": completion.finish}],
        "usage": {**usage, "prompt_tokens_details": {"cached_tokens": completion.cached_tokens}},
    }
