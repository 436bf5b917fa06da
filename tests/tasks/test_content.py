import os

import pytest

from muster.errors import TaskError
from muster.tasks.content import directory_digest
from tasks.task_directory import write_task


def test_the_digest_depends_on_names_contents_and_execute_bits_only(tmp_path):
    first, second = write_task(tmp_path / "x"), write_task(tmp_path / "y")
    os.utime(second / "task.toml", (1, 1))
    assert directory_digest(first) == directory_digest(second)
    seen = {directory_digest(first)}
    (second / "task.toml").write_text("# changed\n")
    seen.add(directory_digest(second))
    (second / "tests" / "test.sh").chmod(0o755)
    seen.add(directory_digest(second))
    (second / "empty").mkdir()
    seen.add(directory_digest(second))
    (second / "empty").rename(second / "renamed")
    seen.add(directory_digest(second))
    assert len(seen) == 5


def test_bytes_cannot_move_between_a_name_and_a_content_unnoticed(tmp_path):
    for name, file, text in (("x", "ab", "c"), ("y", "a", "bc")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    assert directory_digest(tmp_path / "x") != directory_digest(tmp_path / "y")


def test_a_link_counts_as_its_text_and_is_never_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("one")
    directory = write_task(tmp_path)
    (directory / "link").symlink_to(target)
    (directory / "loop").symlink_to(directory)
    before = directory_digest(directory)
    target.write_text("two")
    assert directory_digest(directory) == before
    (directory / "link").unlink()
    (directory / "link").symlink_to(tmp_path / "elsewhere")
    assert directory_digest(directory) != before


def test_a_pipe_is_refused_instead_of_read(tmp_path):
    directory = write_task(tmp_path)
    os.mkfifo(directory / "pipe")
    with pytest.raises(TaskError, match="pipe: neither a file"):
        directory_digest(directory)
