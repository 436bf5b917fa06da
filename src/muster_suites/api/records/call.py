"""One call of the service, and its answers. Travels into the image of a task."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast

from muster_suites.service.http import Refusal, Request, Response
from muster_suites.service.store import Store

JSON = "application/json"


class Call(NamedTuple):
    """`arguments` are what the path's pattern matched."""

    store: Store
    request: Request
    arguments: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """The body, a JSON object. Refused if it is anything else."""
        try:
            value: Any = json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise refusal(400, "bad_json", "The body is not JSON.") from None
        if not isinstance(value, dict):
            raise refusal(400, "bad_json", "The body must be a JSON object.")
        return cast("dict[str, Any]", value)


def answer(status: int, body: Any, *headers: tuple[str, str]) -> Response:
    return Response(status, json.dumps(body).encode() + b"\n", JSON, headers)


def refusal(status: int, error: str, message: Any, *headers: tuple[str, str]) -> Refusal:
    """`error` is for programs, `message` for people."""
    return Refusal(status, json.dumps({"error": error, "message": message}), headers)
