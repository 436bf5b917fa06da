"""The suite `api`: the service itself, and its families solved and failed, here and in real sandboxes."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster import clock
from muster.types import Cause, Verdict
from muster_suites.api import API
from muster_suites.api.records.schema import SCHEMA
from muster_suites.api.records.server import Pace, Service
from suites.grading import draw, grade, several, written
from suites.serving import Served, serving, solve, text, wrong

SETTINGS = {"client_id": "me", "client_secret": "secret", "secret": "x", "token_uses": "0", "burst": "0"}
SETTINGS |= {"lose_every": "0", "busy": "no"}
SEED: dict[str, Any] = {
    "contacts": [
        {"email": f"p{n}@example.com", "name": f"P {n}", "phone": "+4912345678", "city": "Town"} for n in range(23)
    ],
    "accounts": [{"name": name, "balance_cents": 100, "floor_cents": 50} for name in ("a", "b", "c")],
    "documents": [{"title": "One", "owner": "me", "tags": "b"}, {"title": "Two", "owner": "me"}],
    "edits": [{"document_id": 1, "tag": "theirs"}],
    "volumes": [{"name": "v", "owner": "me", "last_used": "2031-01-01"}],
    "snapshots": [{"volume_id": 1}],
    "catalogue": [{"serial": "s1", "model": "M", "weight_g": 5}],
}


class Caller:
    """Says what came back: status, body, headers."""

    def __init__(self, served: Served) -> None:
        self._port = int(served.url.rsplit(":", 1)[1])
        self.token = ""
        self.token = self("POST", "/v1/token", {"client_id": "me", "client_secret": "secret"})[1]["access_token"]

    def __call__(self, method: str, path: str, data: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            body = data if data is None or isinstance(data, str) else json.dumps(data)
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}", **sent})
            answer = connection.getresponse()
            said = answer.read().decode()
            content = json.loads(said) if answer.headers["Content-Type"] == "application/json" else said
            return answer.status, content, dict(answer.headers)
        finally:
            connection.close()


@contextmanager
def called(place: Path, **settings: str) -> Iterator[Caller]:
    """A service with these settings."""
    rows = [{"key": key, "value": value} for key, value in {**SETTINGS, **settings}.items()]
    with serving(place / "records", SCHEMA, json.dumps({"settings": rows, **SEED}), Service) as served:
        yield Caller(served)


@pytest.fixture
def call(tmp_path) -> Iterator[Caller]:
    with called(tmp_path) as caller:
        yield caller


ITEM = {"code": "K", "name": "thing", "quantity": 1}

# --- the service ----------------------------------------------------------------------------------------------


def test_it_explains_itself_to_everyone_and_answers_only_with_a_token(call):
    assert "Idempotency-Key" in call("GET", "/v1")[1]
    assert call("GET", "/v1/contacts", Authorization="Bearer no")[0] == 401
    assert call("POST", "/v1/token", {"client_id": "me", "client_secret": "no"})[0] == 403
    assert call("GET", "/v1/contacts")[0] == 200


def test_a_token_is_used_up_and_another_one_works(tmp_path):
    with called(tmp_path, token_uses="2") as call:
        statuses = [call("GET", "/v1/items")[0] for _ in range(3)]
        assert statuses == [200, 200, 401]
        call.token = call("POST", "/v1/token", {"client_id": "me", "client_secret": "secret"})[1]["access_token"]
        assert call("GET", "/v1/items")[0] == 200


def test_pages_by_cursor_and_by_number_hold_every_record_once(call):
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = call("GET", f"/v1/contacts?limit=5&cursor={cursor}")[1]
        found += [item["email"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert found == [row["email"] for row in SEED["contacts"]]
    assert call("GET", "/v1/contacts?cursor=nonsense")[0] == 422
    first = call("GET", "/v1/accounts?limit=2")[1]
    assert (len(first["items"]), first["pages"]) == (2, 2)
    assert call("GET", "/v1/accounts?limit=2&page=3")[0] == 422


def test_a_change_needs_the_version_that_was_read(call):
    path = "/v1/contacts/1"
    tag = call("GET", path)[2]["ETag"]
    assert call("PATCH", path, {"city": "X"})[0] == 428
    assert call("PATCH", path, {"city": "X"}, If_Match='"v9"')[0] == 412
    status, body, headers = call("PATCH", path, {"city": "X"}, If_Match=tag)
    assert (status, body["city"], headers["ETag"]) == (200, "X", '"v2"')
    assert call("DELETE", path, If_Match=tag)[0] == 412
    assert call("DELETE", path, If_Match='"v2"')[0] == 200
    assert call("GET", path)[0] == 404


def test_someone_else_is_faster_once_and_that_change_stays(call):
    path = "/v1/documents/1"
    assert call("PATCH", path, {"tags": ["mine"]}, If_Match='"v1"')[0] == 412
    _, body, headers = call("GET", path)
    assert body["tags"] == ["b", "theirs"]
    assert call("PATCH", path, {"tags": [*body["tags"], "mine"]}, If_Match=headers["ETag"])[0] == 200
    assert call("GET", path)[1]["tags"] == ["b", "mine", "theirs"]


def test_what_is_wrong_is_said_field_by_field(call):
    status, body, _ = call("POST", "/v1/contacts", {"email": "X", "phone": "12", "name": "N", "age": 3})
    assert status == 422
    assert set(body["message"]) == {"email", "phone", "age", "city"}
    assert call("POST", "/v1/contacts", "[1")[0] == 400
    assert call("PATCH", "/v1/contacts/1", {"email": "n@x.y"}, If_Match='"v1"')[1]["message"] == {
        "email": "cannot be changed"
    }
    for odd in ({"quantity": True}, {"quantity": 10**400}, {"name": "\ud800"}, {"name": ["x"]}, {"name": ""}):
        assert call("POST", "/v1/items", {**ITEM, **odd})[0] == 422, odd
    twice = {"email": "p1@example.com", "name": "N", "phone": "+4912345678", "city": "T"}
    assert call("POST", "/v1/contacts", twice)[0] == 409
    assert call("GET", "/v1/nothing")[0] == 404
    assert call("POST", "/v1/accounts", {})[0] == 405
    assert call("PUT", "/v1/items", {})[0] == 405


def test_a_key_makes_a_request_happen_once(call):
    first = call("POST", "/v1/items", ITEM, Idempotency_Key="k")
    again = call("POST", "/v1/items", ITEM, Idempotency_Key="k")
    assert first[:2] == again[:2]
    assert again[2]["Idempotent-Replay"] == "true"
    assert call("POST", "/v1/items", {**ITEM, "quantity": 2}, Idempotency_Key="k")[0] == 422
    assert len(call("GET", "/v1/items")[1]["items"]) == 1


def test_a_lost_answer_has_happened(tmp_path):
    with called(tmp_path, lose_every="2") as call:
        assert call("POST", "/v1/items", ITEM, Idempotency_Key="1")[0] == 201
        assert call("POST", "/v1/items", {**ITEM, "code": "L"}, Idempotency_Key="2")[0] == 503
        assert call("POST", "/v1/items", {**ITEM, "code": "L"}, Idempotency_Key="2")[0] == 201
        assert [item["code"] for item in call("GET", "/v1/items")[1]["items"]] == ["K", "L"]


def test_after_a_burst_of_writes_comes_a_pause(tmp_path):
    with called(tmp_path, burst="2") as call:
        answers = [call("POST", "/v1/items", ITEM) for _ in range(3)]
        assert [status for status, _, _ in answers] == [201, 201, 429]
        assert answers[2][2]["Retry-After"] == "1"
        assert call("GET", "/v1/items")[0] == 200, "reading goes on"


def test_a_pause_ends():
    pace = Pace(2, pause_s=0.01)
    assert [pace.admit() for _ in range(4)] == [True, True, False, False]

    async def admitted() -> None:
        async with clock.timeout(20):
            while not pace.admit():
                await clock.sleep(0.005)

    clock.run(admitted())
    assert (pace.admit(), pace.admit()) == (True, False)


def test_a_batch_is_booked_whole_or_not_at_all(call):
    def transfer(source: str, target: str, amount: int) -> dict[str, Any]:
        return {"source": source, "target": target, "amount_cents": amount, "note": "n"}

    circle = [transfer("a", "b", 80), transfer("b", "c", 80), transfer("c", "a", 80)]
    for single in circle:
        assert call("POST", "/v1/transfers", single)[0] == 422
    bad = [*circle, transfer("a", "nobody", 1)]
    assert call("POST", "/v1/batches", {"transfers": bad})[0] == 422
    assert call("POST", "/v1/batches", {"transfers": [*circle, {**circle[0], "amount_cents": -1}]})[0] == 422
    assert [row["balance_cents"] for row in call("GET", "/v1/accounts")[1]["items"]] == [100, 100, 100]
    assert call("GET", "/v1/transfers")[1]["items"] == []
    assert call("POST", "/v1/batches", {"transfers": [*circle, transfer("a", "b", 50)]})[0] == 201
    assert [row["balance_cents"] for row in call("GET", "/v1/accounts")[1]["items"]] == [50, 150, 100]


def test_a_job_runs_for_a_while(call):
    status, body, headers = call("POST", "/v1/lookups", {"serial": "s1"})
    assert (status, body["state"], headers["Location"]) == (202, "running", body["job"])
    states = [call("GET", body["job"])[1] for _ in range(3)]
    assert [state["state"] for state in states] == ["running", "running", "done"]
    assert states[2]["result"] == {"model": "M", "weight_g": 5}
    job = call("POST", "/v1/lookups", {"serial": "s2"})[1]["job"]
    assert [call("GET", job)[1].get("reason") for _ in range(2)] == [None, "unknown serial"]


def test_a_volume_with_snapshots_stays(call):
    assert call("DELETE", "/v1/volumes/1", If_Match='"v1"')[0] == 409
    assert call("DELETE", "/v1/snapshots/1", If_Match='"v1"')[0] == 200
    assert call("DELETE", "/v1/volumes/1", If_Match='"v1"')[0] == 200


# --- the families ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("family", API, ids=lambda family: family.name)
def test_the_solution_asks_the_service_and_passes_and_doing_nothing_fails(family, level, tmp_path):
    instance = draw(family, level, split="train" if level % 2 else "heldout")
    seed = json.loads(text(instance.files["service/seed.json"]))
    hurried = [row if row["key"] != "burst" else {**row, "value": "0"} for row in seed["settings"]]  # no pauses here
    with serving(tmp_path / "records", SCHEMA, json.dumps({**seed, "settings": hurried}), Service) as served:
        assert wrong(instance, served.database), "nothing was done yet"
        solve(instance, tmp_path, served)
        assert wrong(instance, served.database) == []


@pytest.mark.parametrize("family", API, ids=lambda family: family.name)
def test_the_instruction_names_every_file_and_the_same_draw_gives_the_same_bytes(family):
    for level in (1, 5):
        instance = draw(family, level)
        assert instance == draw(family, level)
        for path in instance.files:
            name = path.removeprefix("materials/")
            assert name == path or f"/app/{name}" in instance.instruction
        assert instance.agent_user == "agent", "who can open the database can skip the service"


@pytest.mark.parametrize("family", API, ids=lambda family: family.name)
def test_splits_share_no_name(family):
    columns = ("name", "email", "login", "title", "region", "serial")

    def names(split) -> set[str]:
        found: set[str] = set()
        for instance in several(family, 3, 4, split=split):
            seed = json.loads(text(instance.files["service/seed.json"]))
            found |= {str(row[c]) for table in seed.values() for row in table for c in columns if row.get(c)}
        return found

    assert names("train")
    assert not names("train") & names("heldout")


def test_there_are_six_families_and_more_and_a_page_tells_their_levels():
    page = (Path(__file__).parents[2] / "docs/reference/suites.md").read_text()
    assert len({family.name for family in API}) >= 6
    assert all(f"| `{family.name}` | {' | '.join(family.levels)} |" in page for family in API)


@pytest.mark.sandbox
def test_in_a_real_sandbox_the_solution_passes_and_a_cheat_does_not(tmp_path: Path):
    cheat = "cat /srv/records/seed.json; echo x >> /srv/records/service.db; rm -rf /srv; kill -9 -1; echo 1 > /logs/r"
    honest = '[ "$(id -un)" = agent ] && ! ls /srv/records && SOLVE'
    tasks = [written(tmp_path, family, 2) for family in API]
    for name, outcomes in grade(tmp_path, tasks, {"solution": honest, "cheat": cheat}).items():
        assert outcomes["solution"].verdict is Verdict.SUCCESS, name
        assert (outcomes["cheat"].verdict, outcomes["cheat"].cause) == (Verdict.FAILURE, Cause.VERIFIER_FAILED), name
