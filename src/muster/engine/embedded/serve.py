"""The engine's own process: `python -m muster.engine.embedded.serve --model DIR [--dtype bfloat16 ...]`.

Law: it lives no longer than whoever started it. When ready it prints one line of JSON (url, pid, version,
digest); when its standard input ends, it ends. The bearer token comes in `MUSTER_ENGINE_TOKEN`, never in the
arguments, which everyone can read; without one it serves loopback only. SIGTERM is a wish to end as well.

    arguments ─► config ─► weights ─► BatchingEngine ─► EngineThread ─► application ─► ready
                                                             │ failed            stdin EOF
                                                             └──────► exit 1        └──► exit 0
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from aiohttp import web
from pydantic import ValidationError

from muster import clock
from muster.engine.config import EmbeddedEngineConfig
from muster.engine.embedded.batching import BatchingEngine
from muster.engine.embedded.packed_weights import load
from muster.engine.embedded.thread import EngineThread
from muster.engine.http.server import application
from muster.engine.http.wire import TOKEN_VARIABLE
from muster.errors import UserError
from muster.transport.receive import Receiver


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends. Returns the exit code: 0, 1 the engine failed, 2 a user's error."""
    options, config = _parse(arguments)
    token = os.environ.pop(TOKEN_VARIABLE, None)
    try:
        if token is None and not ipaddress.ip_address(options.host).is_loopback:
            raise UserError(f"--host {options.host}: set {TOKEN_VARIABLE} to serve beyond loopback")
        return clock.run(_serve(options, config, token))
    except UserError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, EmbeddedEngineConfig]:
    """One flag per field of the configuration, so that there is one list of fields."""
    parser = argparse.ArgumentParser(
        prog="python -m muster.engine.embedded.serve", description="Serve a model on the CPU"
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--name", default="embedded")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--version-number", type=int, default=0, help="of the weights in --model")
    fields = EmbeddedEngineConfig.model_fields
    for name, field in fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=field.description)
    options = parser.parse_args(arguments)
    given = {name: value for name, value in vars(options).items() if name in fields}
    try:
        return options, EmbeddedEngineConfig.model_validate(given)
    except ValidationError as error:
        parser.error("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))


async def _serve(options: argparse.Namespace, config: EmbeddedEngineConfig, token: str | None) -> int:
    started_at = clock.now()
    if config.threads:
        torch.set_num_threads(config.threads)
    weights = load(options.model, getattr(torch, config.dtype))
    core = BatchingEngine(config, weights, name=options.name, version=options.version_number, started_at=started_at)
    receiver = Receiver(label=options.name, base=options.model)
    engine = EngineThread(core, receiver, threads=config.threads)
    runner = web.AppRunner(application(engine, token), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, options.host, options.port, backlog=1024)
    await site.start()
    host, port = runner.addresses[0][:2]
    ready = {"url": f"http://{host}:{port}", "pid": os.getpid(), "version": options.version_number}
    print(json.dumps({**ready, "digest": weights.digest}), flush=True)  # noqa: T201
    await _first(_asked_to_end(), engine.failed)
    if engine.failed.done():
        traceback.print_exception(engine.failed.result())
        return 1
    await runner.cleanup()
    engine.close()
    receiver.close()
    return 0


async def _first(a: asyncio.Future[None], b: asyncio.Future[BaseException]) -> None:
    """Return when either is done."""
    either = asyncio.Event()
    a.add_done_callback(lambda _: either.set())
    b.add_done_callback(lambda _: either.set())
    await either.wait()


def _asked_to_end() -> asyncio.Future[None]:
    """By the end of standard input, or SIGTERM."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    def read() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # a buffered reader's lock would be held at the interpreter's end
            pass
        loop.call_soon_threadsafe(end)

    loop.add_signal_handler(signal.SIGTERM, end)
    threading.Thread(target=read, name="stdin", daemon=True).start()
    return ended


if __name__ == "__main__":
    sys.exit(main())
