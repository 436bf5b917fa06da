from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from muster.sandbox.dockerfile.ignore import Ignore


@pytest.mark.parametrize(
    ("patterns", "path", "ignored"),
    [
        ("node_modules", "node_modules/a/b", True),
        ("node_modules", "x/node_modules/a", False),
        ("**/cache", "x/y/cache/a", True),
        ("**/cache", "cache", True),
        ("*.log", "a.log", True),
        ("*.log", "x/a.log", False),
        ("**/*.log", "x/a.log", True),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("a/**/z", "a/z", True),
        ("*\n!keep", "keep/x", False),
        ("*\n!keep\nkeep/secret", "keep/secret", True),
        ("a?c", "abc", True),
        ("[a-c]x", "bx", True),
        ("[a-c]x", "dx", False),
        ("\\*x", "*x", True),
        ("\\*x", "ax", False),
        ("/a/./b/", "a/b", True),
        ("# a", "a", False),
        ("", "a", False),
        (".", "a", False),
        ("a.c", "abc", False),
    ],
)
def test_the_last_pattern_that_matches_decides(patterns: str, path: str, ignored: bool) -> None:
    assert Ignore(patterns)(PurePosixPath("/", path)) is ignored


def test_only_an_exception_can_bring_something_back() -> None:
    assert Ignore("a").final
    assert not Ignore("a\n!a/b").final
