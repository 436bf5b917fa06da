"""One server behind HTTP: calls that have a deadline, and every way to fail as one error.

Law: whatever goes wrong is an `EngineError` that says which replica, which call and why. Its evidence has `status` when
the server answered: 4xx says that the request is wrong, and no other replica would say anything else.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn, TypeVar, cast

import aiohttp
from pydantic_core import from_json, to_json

from muster import clock
from muster.errors import EngineError

_T = TypeVar("_T")
_JSON = {"Content-Type": "application/json"}


class Endpoint:
    """A server's address with its key. Close it when done.

    Example: `await Endpoint("replica-0", "http://127.0.0.1:30000").call("GET", "/model_info")`
    """

    def __init__(self, name: str, url: str, token: str | None = None, *, timeout_s: float = 60.0) -> None:
        """timeout_s: of a call that gives none of its own."""
        self.name = name
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s
        self._death: str | None = None
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._http.close()

    def mark_dead(self, reason: str) -> None:
        """Fail all calls from now on, for `reason`: whoever runs the server saw it end."""
        self._death = reason

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """One exchange, answered with status 200. Returns its JSON; None for an empty answer."""
        deadline_s = self._timeout_s if timeout_s is None else timeout_s
        async with self._failing(path, deadline_s), self._request(method, path, body, headers) as response:
            status, raw = response.status, await response.read()
        if status != 200:
            self._refuse(path, status, raw)
        return self.parsed(lambda: from_json(raw) if raw else None)

    async def events(
        self, path: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None, timeout_s: float
    ) -> AsyncGenerator[Any]:
        """The JSON of each server-sent event that answers a POST. The deadline is of all together; closing this closes
        the connection.
        """
        end = clock.now() + timeout_s
        async with AsyncExitStack() as stack:
            async with self._failing(path, timeout_s):
                response = await stack.enter_async_context(self._request("POST", path, body, headers))
                if response.status != 200:
                    self._refuse(path, response.status, await response.read())
                events = _Events(response.content)
                data = await events.next()
            while data is not None:
                yield self.parsed(lambda data=data: from_json(data))
                async with self._failing(path, end - clock.now(), said=timeout_s):
                    data = await events.next()

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str] | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {**self._headers, **(headers or {})}
        if body is None:
            return self._http.request(method, self._url + path, headers=headers)
        data = to_json(body)  # a prompt is thousands of numbers: the standard library takes five times as long
        return self._http.request(method, self._url + path, data=data, headers={**_JSON, **headers})

    @asynccontextmanager
    async def _failing(self, path: str, deadline_s: float, *, said: float | None = None) -> AsyncGenerator[None]:
        """Turn a failure within, or a time-out, into an `EngineError`. said: the deadline that the error names."""
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
            raise EngineError(f"{self.name} {path}: {self._death or f'{type(error).__name__}: {error}'}") from None

    def _refuse(self, path: str, status: int, raw: bytes) -> NoReturn:
        raise EngineError(f"{self.name} {path}: {status} {_message(raw)}", {"status": status})

    def parsed(self, parse: Callable[[], _T]) -> _T:
        """Return what `parse` returns; an answer that it cannot read is the server's fault."""
        try:
            return parse()
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise EngineError(f"{self.name}: an answer that is not of the dialect ({error!r})") from None


class _Events:
    """The data of server-sent events, however long one is; `[DONE]` and comments are passed over."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._whole = deque[bytes]()
        self._rest = b""

    async def next(self) -> bytes | None:
        """None: there is no more."""
        while True:
            while self._whole:
                data = self._whole.popleft().strip().removeprefix(b"data:").strip()
                if data.startswith(b"{"):
                    return data
            chunk = await self._content.readany()
            if not chunk:
                return None
            *whole, self._rest = (self._rest + chunk).split(b"\n\n")
            self._whole.extend(whole)


def _message(raw: bytes) -> str:
    """Message of an error answer: `error.message`, `error`, `message`, `detail`, or its beginning."""
    try:
        answer = json.loads(raw)
        error = answer.get("error") or answer.get("message") or answer["detail"]
        return str(cast("dict[str, Any]", error)["message"]) if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError, AttributeError):
        return raw[:200].decode(errors="replace")
