"""Emulated engines. Law: as the package's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.app.cli.shared import engine_app, out


@engine_app.command(
    "emulate",
    epilog="Examples:  muster engine emulate --preset h100-llama-8b --port 8000  ·  "
    "muster engine emulate --preset mine.toml",
)
def engine_emulate(
    preset: Annotated[str, typer.Option(help="A built-in preset, or a file as calibrate writes it.")] = "h100-llama-8b",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Beyond loopback a token in MUSTER_ENGINE_TOKEN is needed.")] = "127.0.0.1",
    name: Annotated[str, typer.Option(help="The replica's name.")] = "emulated",
) -> None:
    """Serve a timing model of an inference server over HTTP, in wall time, until interrupted."""
    from muster.lab.emulated.presets import preset as read_preset
    from muster.lab.emulated.serve import emulate

    emulate(read_preset(preset), name=name, host=host, port=port, say=lambda url: out.print(f"{name} at {url}"))


@engine_app.command(
    "calibrate", epilog="Example:  muster engine calibrate http://127.0.0.1:8000 --longest 8192 --output mine.toml"
)
def engine_calibrate(
    url: Annotated[str, typer.Argument(help="An idle server. Its token, if any, in MUSTER_ENGINE_TOKEN.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the preset here; default: print.")
    ] = None,
    longest: Annotated[int, typer.Option(min=64, help="Tokens of the longest prompt to try.")] = 4096,
    step_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step: its chunked prefill.")] = 2048,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each shape; the median counts.")] = 3,
) -> None:
    """Time a few requests of chosen shapes on a live server and fit the timing model to them."""
    from muster.lab.emulated.serve import calibrate_url

    fitted = calibrate_url(url, longest=longest, step_tokens=step_tokens, repeats=repeats, say=out.print)
    if output:
        output.write_text(fitted, encoding="utf-8")
    else:
        out.print(fitted, markup=False, soft_wrap=True)
