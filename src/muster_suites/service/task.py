"""A task whose environment is a service: its rows before and after, told once; all else follows.

    Program, before ─► environment/service/ (the program and seed.json), Dockerfile, health check
             after  ─► tests/expected.json, which check.py compares with the database
             client + steps ─► solution/solve.sh

Law: an instance states every row before and after. The service runs as root, in a directory of its own; the agent is
an ordinary user who reaches it over HTTP alone. Where a harness runs the agent as root all the same, it could write
to the database, and would be found out only if it leaves the audit trail alone (see `store`).

The program is Muster's own modules, copied as they are, under the same names: what is tested here is what runs there.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster_suites.frame import Files, Instance
from muster_suites.service.store import BOOKKEEPING, Row, fill

Rows = Mapping[str, list[Row]]
"""Table -> its rows. A column that a row leaves out has its default."""

URL: Final = "http://127.0.0.1:8000"
AGENT: Final = "agent"
SHARED: Final = ("muster_suites.service.http", "muster_suites.service.store")

_DOCKERFILE = """\
FROM debian:bookworm-slim
RUN curl --version && python3 --version || (apt-get update && apt-get install -y --no-install-recommends curl python3)
WORKDIR /home/{agent}
RUN useradd --shell /bin/bash {agent} && chown {agent}:{agent} .
COPY service/ /srv/{name}/
{materials}# With nothing behind it this serves in the foreground; with a command, beside that command.
ENTRYPOINT ["/usr/bin/python3", "-I", "-S", "/srv/{name}"]
"""
_ENTRY = "from pathlib import Path\n\nfrom {module} import main\n\nmain(Path(__file__).parent)\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A service: its name in paths, its tables, the modules it is made of. The first one has `main`.

    `client` is the source of a helper that solutions begin with.
    """

    name: str
    schema: str
    modules: tuple[str, ...]
    client: str

    @property
    def database(self) -> str:
        return f"/srv/{self.name}/service.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One instance, as a family tells it.

    `materials` are files below /app. `steps` is Python that follows the client. `loose` names columns that are not
    compared, since the order of requests decides them: numbers of new rows.
    """

    instruction: str
    before: Rows
    after: Rows
    steps: str
    max_turns: int
    settings: Mapping[str, str]
    materials: Mapping[str, str] = field(default_factory=dict[str, str])
    loose: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def instance(program: Program, case: Case) -> Instance:
    """The whole task. The rows after must differ from those before, or doing nothing would pass."""
    seed = {"settings": [{"key": key, "value": value} for key, value in sorted(case.settings.items())], **case.before}
    tables = _tables(program, case.after, case.loose)
    assert tables != _tables(program, case.before, case.loose), "doing nothing must fail"
    files: dict[str, str] = {f"service/{path}": text for path, text in _sources(program).items()}
    files["service/seed.json"] = _lines(seed)
    files |= {f"materials/{path}": text for path, text in case.materials.items()}
    expected = {"database": program.database, "tables": tables}
    tests: Files = {
        "check.py": Path(__file__).with_name("check.py").read_text("utf-8"),
        "expected.json": json.dumps(expected, indent=1, sort_keys=True) + "\n",
    }
    return Instance(
        instruction=case.instruction,
        files=files,
        tests=tests,
        solution=f"exec /usr/bin/python3 -I - <<'END'\n{program.client}\n\n{case.steps.strip()}\nEND",
        max_turns=case.max_turns,
        dockerfile=_DOCKERFILE.format(
            agent=AGENT, name=program.name, materials="COPY materials/ /app/\n" if case.materials else ""
        ),
        agent_user=AGENT,
        healthcheck={
            "command": f"curl --silent --fail --max-time 2 {URL}/health",
            "interval_sec": 1.0,
            "timeout_sec": 5.0,
            "start_period_sec": 10.0,
            "start_interval_sec": 0.1,
            "retries": 3,
        },
    )


def assigned(values: Mapping[str, object]) -> str:
    """Python that gives these names these values: what a solution is told of its instance."""
    return "".join(f"{name} = {value!r}\n" for name, value in values.items())


def _sources(program: Program) -> dict[str, str]:
    """Path below the service's directory -> source. A directory with __main__.py is something Python can run."""
    found = {"__main__.py": _ENTRY.format(module=program.modules[0])}
    for module in (*SHARED, *program.modules):
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None, module
        found[f"{module.replace('.', '/')}.py"] = Path(spec.origin).read_text("utf-8")
    return found


def _tables(program: Program, rows: Rows, loose: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Every table as the service would hold it, defaults filled in, without the loose columns."""
    connection = sqlite3.connect(":memory:")
    try:
        fill(connection, program.schema, rows)
        return {
            table: _table(connection, table, loose.get(table, ()))
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if table not in BOOKKEEPING
        }
    finally:
        connection.close()


def _table(connection: sqlite3.Connection, table: str, loose: tuple[str, ...]) -> dict[str, Any]:
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] not in loose]
    return {"columns": columns, "rows": connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()}


def _lines(seed: Mapping[str, list[Row]]) -> str:
    """JSON with one row on a line, so that a person can read it."""
    tables = (
        f'"{table}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        for table, rows in seed.items()
    )
    return "{\n" + ",\n".join(tables) + "\n}\n"
