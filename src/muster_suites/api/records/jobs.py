"""Look-ups that take a while: 202 with the address of a job, which is asked until it is done.

Law: how often a job has to be asked depends on its number alone, so that an attempt can be played again. This module
travels into the image of a task.
"""

from __future__ import annotations

from muster_suites.api.records.call import Call, answer, refusal
from muster_suites.api.records.resources import Field, problem
from muster_suites.service.http import Response

_BUSY_EVERY = 4


def start(call: Call) -> Response:
    serial = call.data().get("serial")
    if wrong := problem(Field(), serial):
        raise refusal(422, "invalid", {"serial": wrong})
    number = call.store.run("INSERT INTO jobs (serial, polls, state) VALUES (?, 0, 'running')", serial)
    place = f"/v1/jobs/{number}"
    return answer(202, {"job": place, "state": "running"}, ("Location", place))


def ask(call: Call) -> Response:
    job = call.store.one("SELECT * FROM jobs WHERE id = ?", int(call.arguments[0]))
    if job is None:
        raise refusal(404, "not_found", "There is no such job.")
    call.store.run("UPDATE jobs SET polls = polls + 1 WHERE id = ?", job["id"])
    if job["polls"] < 1 + job["id"] % 2:
        return answer(200, {"state": "running"})
    if call.store.setting("busy") == "yes" and job["id"] % _BUSY_EVERY == 0:
        return answer(200, {"state": "failed", "reason": "busy, start another job"})
    found = call.store.one("SELECT model, weight_g FROM catalogue WHERE serial = ?", job["serial"])
    if found is None:
        return answer(200, {"state": "failed", "reason": "unknown serial"})
    return answer(200, {"state": "done", "result": found})
