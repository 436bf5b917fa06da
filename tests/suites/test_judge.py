"""The judge on final states that are wrong, odd or hostile: a problem found, never a crash, never a pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_suites.judge.cron import check_crontab, parse
from muster_suites.judge.files import check_json, check_lines, check_same_file, check_tree, same
from muster_suites.judge.main import judge, main
from muster_suites.judging import check_source, judged_by, tree


def problems(**check: object) -> list[str]:
    return judge([check])


def test_a_tree_is_as_expected_or_says_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("one\n")
    (tmp_path / "a" / "x.txt").chmod(0o640)
    (tmp_path / "link").symlink_to("a/x.txt")
    root = str(tmp_path)
    wanted = {"a/x.txt": {"type": "file", "text": "one", "mode": "640"}, "link": {"type": "link", "target": "a/x.txt"}}
    assert check_tree(root, wanted) == []
    for path, key, value in (
        ("a/x.txt", "text", "two"),
        ("a/x.txt", "mode", "644"),
        ("a/x.txt", "sha256", "0" * 64),
        ("link", "target", "x"),
        ("link", "type", "file"),
    ):
        assert check_tree(root, {**wanted, path: {**wanted[path], key: value}}), (path, key)
    assert check_tree(root, {"a/x.txt": wanted["a/x.txt"]}) == [f"{root}/link: should not be there"]
    assert check_tree(root, {"a/x.txt": wanted["a/x.txt"]}, ignore=("link",)) == []
    assert check_tree(root, {**wanted, "b": {"type": "dir"}}) == [f"{root}/b: missing"]


def test_links_pipes_devices_and_large_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("one\n")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "inner").symlink_to(".")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(9 * 1024 * 1024)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "directory").mkdir()
    names = ("link", "inner/real", "zero", "pipe", "large", "binary", "directory", "real/x", "missing")
    assert problems(check="lines", path=f"{tmp_path}/real", lines=["one"]) == []
    for name in names:
        assert problems(check="lines", path=f"{tmp_path}/{name}", lines=["one"]), name
    (tmp_path / "moved").symlink_to(tmp_path / "directory")
    assert problems(check="tree", root=f"{tmp_path}/moved", entries={})


def test_lines_forgive_blanks_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("a 1 \n\nb 2")
    assert check_lines(str(path), ["a 1", "b 2"]) == []
    assert check_lines(str(path), ["b 2", "a 1"])
    assert check_lines(str(path), ["b 2", "a 1"], ordered=False) == []
    assert check_lines(str(path), ["a 1"])
    assert check_lines(str(path), ["a 1", "a 1", "b 2"], ordered=False)


def test_json_is_compared_with_its_types(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for text, wanted, good in (
        ('{"b": 1, "a": [true]}', {"a": [True], "b": 1}, True),
        ("1", True, False),
        ('"1"', 1, False),
        ("NaN", 0, False),
        ("", None, False),
        ("[" * 100_000, [], False),
        ("9" * 10_000, 1, False),
    ):
        path.write_text(text)
        assert (check_json(str(path), wanted) == []) is good, text[:20]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_a_value_is_the_same_as_itself_and_never_as_a_list_around_it(value: object) -> None:
    assert same(value, json.loads(json.dumps(value)))
    assert not same(value, [value])


def test_hard_links_are_told_from_copies(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("same")
    root = str(tmp_path)
    assert check_same_file(root, [["a", "b"], ["c"]])
    (tmp_path / "b").unlink()
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert check_same_file(root, [["a", "b"], ["c"]]) == []
    (tmp_path / "c").unlink()
    (tmp_path / "c").hardlink_to(tmp_path / "a")
    assert check_same_file(root, [["a", "b"], ["c"]])
    assert check_same_file(root, [["a", "missing"]])


@pytest.mark.parametrize(
    ("line", "schedule"),
    [
        ("*/15 * * * *", "0,15,30,45 * * * *"),
        ("5 4 * * sun", "5 4 * * 7"),
        ("0 0 * * Mon-Fri", "0 0 * * 1,2,3,4,5"),
        ("0 9-17/4 * * *", "0 9,13,17 * * *"),
        ("@daily", "0 0 * * *"),
        ("0 0 1 JAN *", "0 0 1 1 *"),
    ],
)
def test_a_schedule_may_be_written_in_any_way(line: str, schedule: str, tmp_path: Path) -> None:
    path = tmp_path / "crontab"
    path.write_text(f"# jobs\nPATH=/usr/bin\n\n{line}  /opt/bin/run   now\n")
    assert check_crontab(str(path), [[schedule, "/opt/bin/run now"]]) == []
    assert check_crontab(str(path), [["1 1 1 1 1", "/opt/bin/run now"]])
    assert check_crontab(str(path), [[schedule, "/opt/bin/run"]])
    assert check_crontab(str(path), [[schedule, "/opt/bin/run now"], [schedule, "/opt/bin/other"]])
    path.write_text(path.read_text() + "0 0 * * * /opt/bin/more\n")
    assert check_crontab(str(path), [[schedule, "/opt/bin/run now"]]), "one job too many"


@pytest.mark.parametrize(
    "line", ["60 * * * * x", "* * * * x", "5-1 * * * * x", "*/0 * * * * x", "@reboot x", "a", "² * * * * x"]
)
def test_what_is_no_line_of_a_crontab_fails(line: str, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text(f"{line}\n")
    assert check_crontab(str(tmp_path / "crontab"), [["* * * * *", "x"]])


@given(st.lists(st.text("0123456789*/-,abcmonjan", max_size=6), min_size=5, max_size=5))
def test_parsing_a_schedule_never_fails(fields: list[str]) -> None:
    schedule = parse(fields)
    assert schedule is None or all(schedule[:5])


def test_day_and_weekday_both_set_is_another_schedule_than_either() -> None:
    assert len({parse(f.split()) for f in ("0 0 1 * *", "0 0 * * 1", "0 0 1 * 1", "0 0 * * *")}) == 4


@pytest.mark.parametrize("before", ["nothing", "a link", "a file"])
def test_the_reward_file_is_new_and_says_whether_every_check_holds(before: str, tmp_path: Path) -> None:
    logs, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    logs.mkdir()
    if before == "a link":
        (logs / "reward.txt").symlink_to(elsewhere)
    elif before == "a file":
        (logs / "reward.txt").write_text("1\n")
    (tmp_path / "there").touch()
    for paths, reward in ([], "1\n"), ([f"{tmp_path}/there"], "0\n"):
        (tmp_path / "expected.json").write_text(json.dumps([{"check": "absent", "paths": paths}]))
        main(str(tmp_path), str(logs))
        assert (logs / "reward.txt").read_text() == reward
        assert not (logs / "reward.txt").is_symlink()
    assert not elsewhere.exists()


def test_the_shipped_program_is_one_file_that_needs_nothing_of_ours(tmp_path: Path) -> None:
    assert "muster" not in check_source()
    files = judged_by(tree(str(tmp_path / "empty"), {}))
    for name, file in files.items():
        (tmp_path / name).write_bytes(file.data)
    (tmp_path / "empty").mkdir()
    program = (tmp_path / "check.py").read_text().replace('"/tests"', f'"{tmp_path}"')
    program = program.replace('"/logs/verifier"', f'"{tmp_path}/logs"')
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, cwd=tmp_path)
    assert (tmp_path / "logs" / "reward.txt").read_text() == "1\n"
