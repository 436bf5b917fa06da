from __future__ import annotations

from muster.observe.sections.evidence import brief, lines

BLAMED = {
    "final": [
        {"reward": None, "problem": "missing", "queued_s": 0.0, "start_s": 0.02, "run_s": 0.5, "output": "boom\n"},
        {"reward": None, "problem": "timed_out"},
    ],
    "control": {"reward": 0.0, "problem": None, "run_s": 0.4, "output": "0 of 3 pass"},
}


def test_a_line_says_what_the_runs_on_the_final_state_and_the_control_said() -> None:
    assert brief(BLAMED) == "final: missing, timed out; control: reward 0"


def test_the_whole_evidence_shows_every_run_with_its_output() -> None:
    assert lines(BLAMED) == [
        "run 1 on the final state: missing (queued 0 s, start 0.02 s, run 0.5 s)",
        "  | boom",
        "run 2 on the final state: timed out",
        "run on the untouched control: reward 0 (run 0.4 s)",
        "  | 0 of 3 pass",
    ]


def test_losses_name_the_error_and_the_counters() -> None:
    evidence = {"error": "t#1: killed from outside", "oom_kills": 2, "pids_refused": None}
    assert brief(evidence) == "t#1: killed from outside; 2 OOM kills, 0 pids refused"
    assert lines(evidence)[0] == "error: t#1: killed from outside"


def test_a_plain_grade_and_nothing_at_all_have_a_line_too() -> None:
    assert brief({"run_s": 0.1, "output": "a\nlast line\n"}) == "last line"
    assert brief({"tampered": ["/bin", "/lib"]}) == "touched /bin, /lib"
    assert brief({}) == "none kept"
    assert lines({"run_s": 0.1, "output": "out"}) == ["run on the final state (run 0.1 s)", "  | out"]
