"""Small weights, steps of them, and a server that cuts connections."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np

from muster.publish.chain import ChainExporter
from muster.publish.places import FolderPlace, MemoryPlace, ServedPlace
from muster.transport.files import SPARE_BYTES
from muster.transport.receive import Receiver
from muster.transport.tensors import Array, digest, map_arrays, read_header
from muster.types import Publication

SHAPES = {"b.weight": (64, 48), "a.weight": (48, 64), "norm": (64,), "one": (1, 1)}


def weights(seed: int = 0) -> dict[str, Array]:
    """bf16 bits of any kind, NaN and infinities among them; the names are not sorted."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 65536, shape, dtype=np.uint16) for name, shape in SHAPES.items()}


def stepped(arrays: dict[str, Array], seed: int, share: float = 0.03) -> dict[str, Array]:
    """As an optimiser step does: a few values move by the last bit."""
    rng = np.random.default_rng(seed)
    return {name: array ^ (rng.random(array.shape) < share) for name, array in arrays.items()}


def history(length: int) -> list[dict[str, Array]]:
    """Version 0, 1, ..."""
    versions = [weights()]
    for number in range(1, length):
        versions.append(stepped(versions[-1], number))
    return versions


def export(exporter: ChainExporter, arrays: dict[str, Array], number: int, dtype: str = "bfloat16") -> Publication:
    return exporter.export(arrays, number=number, digest=digest(arrays, dtype), dtype=dtype)


def in_folder(folder: Path, **settings) -> ChainExporter:  # type: ignore[no-untyped-def]
    return ChainExporter(FolderPlace(folder), transport="checkpoint", label="run", **{"form": "delta"} | settings)


def in_memory(  # type: ignore[no-untyped-def]
    directory: Path, *, fallback: Path | None = None, label: str = "run", spare_bytes: int = SPARE_BYTES, **settings
) -> ChainExporter:
    place = MemoryPlace(fallback=fallback or directory, directory=directory, spare_bytes=spare_bytes)
    return ChainExporter(place, transport="memory", label=label, **settings)


def served(folder: Path, **settings) -> ChainExporter:  # type: ignore[no-untyped-def]
    place = ServedPlace(
        host="127.0.0.1", port=0, advertised_host="", fallback=folder / "fallback", directory=folder / "shm"
    )
    return ChainExporter(place, transport="direct", label="run", **{"form": "delta"} | settings)


def receiver(folder: Path, **settings) -> Receiver:  # type: ignore[no-untyped-def]
    """Of an engine that keeps its files in `folder`/here."""
    (folder / "here").mkdir(exist_ok=True)
    return Receiver(label="e0", directory=folder / "here", **settings)


def left(folder: Path) -> list[str]:
    """Names of the files that such a receiver has."""
    return sorted(path.name for path in (folder / "here").iterdir())


def same(path: Path, arrays: dict[str, Array]) -> bool:
    """Whether the file holds these bits under these names."""
    held = map_arrays(path, read_header(path))
    return held.keys() == arrays.keys() and all(np.array_equal(held[name], arrays[name]) for name in arrays)


@contextlib.contextmanager
def cutting_server(content: bytes, pieces: list[int]) -> Generator[tuple[str, list[int]]]:
    """Serves `content`; the n-th request gets `pieces[n]` bytes and then a closed connection, later ones the rest.

    Yields its address and the offsets that were asked for.
    """
    asked: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])
            assert found
            start = int(found[1])
            sent = pieces[len(asked)] if len(asked) < len(pieces) else len(content)
            asked.append(start)
            self.send_response(206)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            self.wfile.write(content[start : start + sent])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/token/file", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
