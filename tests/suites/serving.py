"""Generated services, run in this process on a free port: their tasks solved and checked without a sandbox."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster_suites.frame import File, Instance
from muster_suites.service import check, http
from muster_suites.service.http import App
from muster_suites.service.store import Store, create


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that answers at `url`."""

    url: str
    database: Path


@contextmanager
def serving(place: Path, schema: str, seed: str, app: Callable[[Store], App]) -> Iterator[Served]:
    """`seed` is the text of seed.json. `place` is a new or empty directory."""
    place.mkdir(exist_ok=True)
    database = place / "service.db"
    (place / "seed.json").write_text(seed)
    create(database, schema, place / "seed.json")
    store = Store(database)
    listening = http.server(app(store), ("127.0.0.1", 0))
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Served(url=f"http://127.0.0.1:{listening.server_address[1]}", database=database)
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
        store.close()


def text(file: File | str | bytes) -> str:
    content = file.content if isinstance(file, File) else file
    return content if isinstance(content, str) else content.decode()


def solve(instance: Instance, place: Path, served: Served) -> None:
    """Run the program of its reference solution here."""
    for path, file in instance.files.items():
        if path.startswith("materials/"):
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text(file))
    program = instance.solution.split("<<'END'\n")[1].removesuffix("\nEND")
    program = program.replace("http://127.0.0.1:8000", served.url).replace("/app/", f"{place}/materials/")
    exec(compile(program, "solve", "exec"), {"__name__": "solve"})


def wrong(instance: Instance, database: Path) -> list[str]:
    """Differences that the task's own check finds in a database, wherever it lies."""
    expected: dict[str, Any] = json.loads(text(instance.tests["expected.json"]))
    return list(check.wrong({**expected, "database": str(database)}, database.parent))
