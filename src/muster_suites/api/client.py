"""A patient client of the records service, for reference solutions. A whole program's head: standard library only.

call ─► 401: another token   429: wait   503: the same again, under the same key   else: the answer
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


class Client:
    def __init__(self, base: str, client_id: str, client_secret: str) -> None:
        self._base = base
        self._secret = {"client_id": client_id, "client_secret": client_secret}
        self._token = ""
        self._keys = (f"key-{number}" for number in count())

    def get(self, path: str) -> Any:
        return self._call("GET", path)[0]

    def post(self, path: str, data: Any) -> Any:
        return self._call("POST", path, data)[0]

    def every(self, kind: str) -> Iterator[Any]:
        """All records of a kind, page by page."""
        query = ""
        while True:
            page = self.get(f"/v1/{kind}?limit=25{query}")
            yield from page["items"]
            if page.get("next_cursor"):
                query = f"&cursor={page['next_cursor']}"
            elif page.get("page", 1) < page.get("pages", 1):
                query = f"&page={page['page'] + 1}"
            else:
                return

    def change(self, path: str, decide: Callable[[Any], Any]) -> None:
        """PATCH what `decide` makes of the record, as often as someone else is faster."""
        while True:
            record, tag = self._call("GET", path)
            _, refused = self._call("PATCH", path, decide(record), tag)
            if refused != "412":
                return

    def delete(self, path: str) -> None:
        self._call("DELETE", path, None, self._call("GET", path)[1])

    def look_up(self, serial: str) -> Any:
        """The result of a job, or None for a serial number that nobody knows."""
        while True:
            job = self.post("/v1/lookups", {"serial": serial})["job"]
            answer = self.get(job)
            while answer["state"] == "running":
                answer = self.get(job)
            if answer["state"] == "done" or "busy" not in answer["reason"]:
                return answer.get("result")

    def _call(self, method: str, path: str, data: Any = None, tag: str = "") -> tuple[Any, str]:
        """The answer and its ETag, or "412" in its place."""
        key = next(self._keys)
        while True:
            headers = {"Authorization": f"Bearer {self._token}", "Idempotency-Key": key, "If-Match": tag}
            body = None if data is None else json.dumps(data).encode()
            sent = {name: value for name, value in headers.items() if value}
            request = Request(self._base + path, data=body, method=method, headers=sent)
            try:
                with urlopen(request, timeout=30) as answer:
                    return json.load(answer), answer.headers.get("ETag", "")
            except HTTPError as error:
                said = error.read().decode()
                error.close()
                if error.code == 412:
                    return None, "412"
                if error.code == 401:
                    token = self._base + "/v1/token"
                    with urlopen(Request(token, data=json.dumps(self._secret).encode()), timeout=30) as answer:
                        self._token = json.load(answer)["access_token"]
                elif error.code in (429, 503):
                    threading.Event().wait(float(error.headers["Retry-After"]) + 0.05)
                else:
                    raise SystemExit(f"{method} {path}: {said}") from None


def lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").splitlines()
