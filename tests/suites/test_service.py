"""Service that `website` and `api` share: the store, the server process, the check of a database."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from muster import clock
from muster_suites.api import API
from muster_suites.service import check
from muster_suites.service.store import Store, create
from muster_suites.website import WEBSITE
from muster_suites.website.shop.schema import SCHEMA as SHOP
from suites.grading import draw, written
from suites.serving import text, wrong

SCHEMA = "CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);"
FAMILIES = {family.name: family for family in (*WEBSITE, *API)}
SEED = {"settings": [{"key": "secret", "value": "s"}], "things": [{"name": "one"}]}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "seed.json").write_text(json.dumps(SEED))
    create(tmp_path / "service.db", SCHEMA, tmp_path / "seed.json")
    opened = Store(tmp_path / "service.db")
    yield opened
    opened.close()


def test_a_refused_request_takes_all_its_changes_back(store):
    with pytest.raises(sqlite3.IntegrityError), store.changing("POST", "/things"):
        store.run("INSERT INTO things (name) VALUES ('two')")
        store.run("INSERT INTO things (name) VALUES ('one')")
    assert store.all("SELECT name FROM things") == [{"name": "one"}]
    assert store.all("SELECT * FROM changes") == []


def test_changes_are_noted_with_the_request_that_made_them(store):
    with store.changing("POST", "/things"):
        store.run("INSERT INTO things (name) VALUES ('two')")
    store.run("UPDATE things SET name = 'three' WHERE id = 2")
    assert [(row["request"], row["action"]) for row in store.all("SELECT * FROM changes")] == [
        (1, "INSERT"),
        (0, "UPDATE"),
    ]


def test_a_database_that_exists_is_kept(store, tmp_path):
    with store.changing("POST", "/things"):
        store.run("INSERT INTO things (name) VALUES ('two')")
    create(tmp_path / "service.db", SCHEMA, tmp_path / "seed.json")
    assert len(store.all("SELECT * FROM things")) == 2


# --- the process ----------------------------------------------------------------------------------------------


def started(home: Path, *command: str) -> tuple[subprocess.Popen[bytes], int]:
    """The service of a task's files, as its ENTRYPOINT starts it. Answers when this returns."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-I", "-S", str(home), *command]
    process = subprocess.Popen(argv, env={"PORT": str(port)}, stdout=subprocess.PIPE)

    async def answers() -> None:
        async with clock.timeout(20):
            while True:
                try:
                    return ask(port, "GET", "/health")
                except ConnectionRefusedError:
                    await clock.sleep(0.01)

    clock.run(answers())
    return process, port


def ask(port: int, method: str, path: str, data: object = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, None if data is None else json.dumps(data), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def home(tmp_path: Path) -> Path:
    return written(tmp_path, FAMILIES["website-order"], 1) / "environment" / "service"


def test_the_service_keeps_its_directory_to_itself_and_sends_no_date(tmp_path):
    directory = home(tmp_path)
    process, port = started(directory)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/products")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.headers.keys() == ["Content-Type", "Content-Length"], "an attempt played again compares equal"
        answer.read()
        connection.close()
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / "service.db").stat().st_mode & 0o777 == 0o600
    finally:
        process.kill()
        process.communicate()


def test_with_a_command_it_serves_beside_it(tmp_path):
    """As where a harness puts `sleep infinity` behind an image's ENTRYPOINT."""
    command = "import signal; print('the command', flush=True); signal.pause()"
    process, port = started(home(tmp_path), sys.executable, "-c", command)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"the command\n"
        assert ask(port, "GET", "/health")[0] == 200
        assert len(children) == 1, "the server is a child of the command"
    finally:
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        process.kill()
        process.communicate()


def test_what_was_answered_survives_a_kill(tmp_path):
    directory = written(tmp_path, FAMILIES["api-import"], 1) / "environment" / "service"
    settings = {row["key"]: row["value"] for row in json.loads((directory / "seed.json").read_text())["settings"]}
    process, port = started(directory)
    try:
        _, body = ask(port, "POST", "/v1/token", {key: settings[key] for key in ("client_id", "client_secret")})
        token = json.loads(body)["access_token"]
        for number in range(5):
            item = {"code": f"K{number}", "name": "thing", "quantity": number}
            assert ask(port, "POST", "/v1/items", item, Authorization=f"Bearer {token}")[0] == 201
    finally:
        process.kill()
        process.communicate()
    connection = sqlite3.connect(directory / "service.db")
    assert connection.execute("SELECT count(*) FROM items WHERE code LIKE 'K%'").fetchone() == (5,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


# --- the check ------------------------------------------------------------------------------------------------


@pytest.fixture
def case(tmp_path):
    """An instance, and a database in its final state."""
    instance = draw(FAMILIES["website-order"], 1)
    expected = json.loads(text(instance.tests["expected.json"]))
    rows = {
        name: [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
        for name, table in expected["tables"].items()
    }
    (tmp_path / "final.json").write_text(json.dumps(rows))
    create(tmp_path / "service.db", SHOP, tmp_path / "final.json")
    return instance, tmp_path / "service.db"


def test_the_final_state_is_accepted(case):
    assert wrong(*case) == []


def test_a_row_more_less_or_other_is_found(case):
    instance, database = case
    for sql in (
        "UPDATE products SET stock = stock + 1 WHERE id = 1",
        "DELETE FROM order_lines",
        "INSERT INTO documents VALUES ('x', 'x', 'x')",
        "UPDATE users SET newsletter = newsletter || ' '",
    ):
        connection = sqlite3.connect(database)
        connection.execute("BEGIN")
        connection.execute(sql)
        connection.execute("UPDATE changes SET request = 1")
        connection.execute("INSERT OR IGNORE INTO requests VALUES (1, 'POST', '/', 0)")
        connection.commit()
        connection.close()
        assert wrong(instance, database), sql
        assert "not made through the service" not in str(wrong(instance, database))


def test_the_right_rows_without_a_request_behind_them_are_refused(case):
    instance, database = case
    connection = sqlite3.connect(database)
    connection.execute("UPDATE products SET stock = stock WHERE id = 1")
    connection.commit()
    connection.close()
    assert wrong(instance, database) == ["1 changes were not made through the service"]


def test_a_half_done_change_of_a_killed_service_is_taken_back(case):
    instance, database = case
    child = subprocess.Popen(
        [sys.executable, "-c", _HALF_DONE, str(database)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"half done\n"
    child.kill()
    child.communicate()
    assert database.with_name("service.db-journal").stat().st_size > 0
    assert wrong(instance, database) == []


_HALF_DONE = """
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("PRAGMA cache_size = 1")
c.execute("PRAGMA synchronous = OFF")
c.execute("BEGIN")
c.execute("UPDATE products SET description = hex(randomblob(3000))")
print("half done", flush=True)
input()
"""


@pytest.mark.parametrize("kind", ["missing", "link", "directory", "pipe", "zeros", "huge", "text", "table"])
def test_what_stands_in_place_of_the_database_earns_nothing(case, kind):
    instance, database = case
    moved = database.with_name("moved.db")
    database.rename(moved)
    if kind == "link":
        database.symlink_to(moved)
    elif kind == "directory":
        database.mkdir()
    elif kind == "pipe":
        os.mkfifo(database)
    elif kind == "zeros":
        database.symlink_to("/dev/zero")
    elif kind == "huge":
        with database.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "text":
        database.write_text("SQLite format 3\0" + "x" * 5000)
    elif kind == "table":
        sqlite3.connect(database).close()
    with pytest.raises((OSError, sqlite3.Error)):
        assert wrong(instance, database) == []


def test_the_check_writes_0_whatever_happens(tmp_path, capsys):
    reward = tmp_path / "reward.txt"
    check.main(tmp_path / "none.json", reward)
    assert reward.read_text() == "0\n"
    (tmp_path / "expected.json").write_text(json.dumps({"database": "/nowhere/service.db", "tables": {}}))
    check.main(tmp_path / "expected.json", reward)
    assert reward.read_text() == "0\n"
    assert "the database cannot be read" in capsys.readouterr().out
