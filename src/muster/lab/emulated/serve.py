"""An emulated engine behind HTTP, in wall time: in the dialect of `wire`.

    emulate(preset)    ─► serving(engine) ─► address ─► until interrupted
    calibrate_url(url) ─► calibrate over HTTP ─► a preset in TOML

Law: what connects to it cannot tell it from a server by its interface, only by what it says. Loopback is open; any
other address needs the bearer token in `MUSTER_ENGINE_TOKEN`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.engine.http.replica import HttpReplica
from muster.engine.http.server import application
from muster.engine.http.wire import TOKEN_VARIABLE
from muster.errors import UserError
from muster.lab.emulated.calibrate import Calibration, calibrate
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.presets import to_toml
from muster.lab.faults import INITIAL


def emulate(config: EmulatedEngineConfig, *, name: str, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted or terminated. `say` is told the address once it answers. Raises `UserError`."""
    clock.run(_until_interrupted(config, name, host, port, say))


def calibrate_url(url: str, *, longest: int, step_tokens: int, repeats: int, say: Callable[[str], None]) -> str:
    """The preset, as TOML, of the server at `url`. Raises `EngineError` when it fails, `UserError` for its limits."""
    fitted = clock.run(_calibrate_url(url, longest, step_tokens, repeats, say))
    comment = (
        f"# fitted to {url}: {len(fitted.observations)} runs, predicted within {fitted.typical_error:.1%} (median), "
        f"{fitted.worst_error:.1%} (worst); {fitted.overhead_s * 1000:.1f} ms a run outside the engine\n"
    )
    return comment + to_toml(fitted.config)


@asynccontextmanager
async def serving(
    engine: EmulatedEngine, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> AsyncGenerator[str]:
    """Serve `engine` and yield the address. port: 0 takes a free one. Raises `UserError` when it cannot listen."""
    runner = web.AppRunner(application(engine, token), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
        except OSError as error:
            raise UserError(f"{host}:{port}: {error.strerror}; choose another --port") from None
        bound_host, bound_port = runner.addresses[0][:2]
        yield f"http://{bound_host}:{bound_port}"
    finally:
        await runner.cleanup()


async def _until_interrupted(
    config: EmulatedEngineConfig, name: str, host: str, port: int, say: Callable[[str], None]
) -> None:
    token = os.environ.get(TOKEN_VARIABLE)
    if token is None and not _is_loopback(host):
        raise UserError(f"--host {host}: set {TOKEN_VARIABLE} to serve beyond loopback")
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    engine = EmulatedEngine(config, name=name, version=INITIAL)
    async with serving(engine, host=host, port=port, token=token) as url:
        say(url)
        await ended.wait()


async def _calibrate_url(
    url: str, longest: int, step_tokens: int, repeats: int, say: Callable[[str], None]
) -> Calibration:
    async with HttpReplica("server", url, os.environ.get(TOKEN_VARIABLE)) as replica:
        return await calibrate(replica, longest=longest, step_tokens=step_tokens, repeats=repeats, say=say)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
