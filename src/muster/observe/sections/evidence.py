"""Evidence of an outcome, in one line for a table or in a few lines for a reader. Law: pure; reads any evidence.

runs on the final state, control run ─► "final: missing, missing; control: reward 0"
errors, counters, touched paths      ─► as said
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from muster.observe.words import line

_TIMES = ("queued_s", "start_s", "run_s")


def brief(evidence: Mapping[str, Any]) -> str:
    """One line. Example: `brief({"tampered": ["/bin"]})` gives `"touched /bin"`"""
    parts: list[str] = []
    if "final" in evidence:
        parts.append("final: " + ", ".join(_verdict(run) for run in _runs(evidence["final"])))
    if "control" in evidence:
        parts.append(f"control: {_verdict(evidence['control'])}")
    if "tampered" in evidence:
        parts.append("touched " + ", ".join(map(str, evidence["tampered"])))
    if "error" in evidence:
        parts.append(line(str(evidence["error"])))
    if any(evidence.get(name) for name in ("oom_kills", "pids_refused")):
        parts.append(f"{evidence.get('oom_kills') or 0} OOM kills, {evidence.get('pids_refused') or 0} pids refused")
    if not parts and "output" in evidence:
        parts.append(line(str(evidence["output"]).strip().rpartition("\n")[2]))
    return "; ".join(parts) or "none kept"


def lines(evidence: Mapping[str, Any]) -> list[str]:
    """All of it: each run of the verifier with its output, then what else is known."""
    found: list[str] = []
    for index, run in enumerate(_runs(evidence.get("final", []))):
        found += _run(f"run {index + 1} on the final state", run)
    if "control" in evidence:
        found += _run("run on the untouched control", evidence["control"])
    if not found and any(name in evidence for name in _TIMES):
        found += _run("run on the final state", evidence)
    rest = {k: v for k, v in evidence.items() if k not in ("final", "control", "output", *_TIMES)}
    return found + [f"{name.replace('_', ' ')}: {value}" for name, value in rest.items()]


def _run(title: str, run: Mapping[str, Any]) -> list[str]:
    times = ", ".join(f"{name.removesuffix('_s')} {run[name]:.3g} s" for name in _TIMES if name in run)
    said = [f"  | {line}" for line in str(run.get("output", "")).strip().splitlines()]
    known = ("reward", "problem", "output", *_TIMES)
    rest = [f"  {name.replace('_', ' ')}: {value}" for name, value in run.items() if name not in known]
    verdict = f": {_verdict(run)}" if "reward" in run or "problem" in run else ""
    return [f"{title}{verdict}" + (f" ({times})" if times else ""), *rest, *said]


def _runs(value: Any) -> Sequence[Mapping[str, Any]]:
    return cast("Sequence[Mapping[str, Any]]", value)


def _verdict(run: Mapping[str, Any]) -> str:
    if run.get("reward") is not None:
        return f"reward {run['reward']:g}"
    return str(run.get("problem", "unknown")).replace("_", " ")
