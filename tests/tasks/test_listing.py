import io

import pytest
from rich.console import Console

from muster.errors import TaskError
from muster.tasks.harbor import load_directory
from muster.tasks.listing import render, rows
from tasks.task_directory import write_task


def printed(directory, width: int = 200) -> tuple[bool, str]:
    out = io.StringIO()
    return render(directory, Console(file=out, width=width)), out.getvalue()


def test_a_row_shows_what_a_task_is(tmp_path):
    write_task(
        tmp_path,
        toml='[metadata]\nfamily = "copying"\nmax_turns = 2\n',
        **{"solution/solve.sh": "true\n", "instruction.md": "First line.\nSecond line.\n"},
    )
    (row,) = rows(load_directory(tmp_path).tasks)
    assert (row.id, row.family, row.max_turns, row.solution) == ("one", "copying", "2", "yes")
    assert (row.steps, row.network) == ("-", "none")
    assert row.instruction == "First line."


def test_steps_and_network_are_shown(tmp_path):
    write_task(
        tmp_path,
        toml="[environment]\nallow_internet = true\n[[steps]]\nname = 'a'\n[[steps]]\nname = 'b'\n",
        **{f"steps/{name}/{file}": "true\n" for name in "ab" for file in ("instruction.md", "solution/solve.sh")},
    )
    (row,) = rows(load_directory(tmp_path).tasks)
    assert (row.steps, row.network, row.solution) == ("2", "any", "yes")


def test_a_directory_of_good_tasks_lists_them_all(tmp_path):
    write_task(tmp_path, "a")
    write_task(tmp_path, "b")
    fine, text = printed(tmp_path)
    assert fine
    assert text.splitlines()[-1] == "2 tasks, 0 broken"


def test_broken_tasks_follow_the_good_ones_and_spoil_the_answer(tmp_path):
    write_task(tmp_path, "a")
    write_task(tmp_path, "b", toml="[environment]\ngpus = 1\n")
    fine, text = printed(tmp_path)
    assert not fine
    assert "b/task.toml: environment.gpus: 1 GPUs inside a sandbox are not supported yet" in text
    assert "1 tasks, 1 broken" in text


def test_what_a_task_author_wrote_is_not_markup(tmp_path):
    write_task(tmp_path, **{"instruction.md": "[red]Paint[/red] it.\n"})
    assert "[red]Paint[/red] it." in printed(tmp_path)[1]


def test_an_empty_directory_is_an_error(tmp_path):
    with pytest.raises(TaskError):
        printed(tmp_path)


def test_names_are_whole_in_a_narrow_terminal(tmp_path):
    name = "a-rather-long-name-of-a-task-0001"
    write_task(tmp_path, name, **{"instruction.md": "word " * 40})
    assert name in printed(tmp_path, width=80)[1]
