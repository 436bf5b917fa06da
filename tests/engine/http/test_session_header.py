"""A router in front of servers keeps a session in its place by a header, whose name differs from router to router."""

from __future__ import annotations

import numpy as np
import pytest
from aiohttp import web

from muster import clock
from muster.engine.http.replica import HttpReplica
from muster.errors import EngineError
from muster.types import Sampling, Session


@pytest.mark.parametrize("name", ["X-Session-ID", "X-Dynamo-Session-ID"])
def test_a_replica_names_the_session_in_the_header_that_it_was_given(name: str) -> None:
    heard: list[str | None] = []

    async def busy(request: web.Request) -> web.Response:
        heard.append(request.headers.get(name))
        return web.json_response({"error": {"message": "busy"}}, status=503)

    async def main() -> None:
        application = web.Application()
        application.router.add_post("/inference/v1/generate", busy)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with HttpReplica("r0", f"http://{host}:{port}", session_header=name) as replica:
            with pytest.raises(EngineError, match="busy"):
                await replica.generate(np.array([1], dtype=np.int32), Sampling(), Session(id="t1"))
        await runner.cleanup()

    clock.run(main())
    assert heard == ["t1"]
