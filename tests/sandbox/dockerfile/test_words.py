from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.sandbox.dockerfile.words import WordError, expand, expand_text, split

ENV = {"A": "x y", "P": "a.tar.gz", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"$A"-${NONE:-none}', "x y-none"),
        ("'$A'", "$A"),
        ("\\$A", "$A"),
        ("a\\ b", "a b"),
        ('"\\"q\\n"', '"q\\n'),
        ("$", "$"),
        ("$A$P", "x ya.tar.gz"),
        ("${EMPTY-d}", ""),
        ("${EMPTY:-d}", "d"),
        ("${A:+y${P}}", "ya.tar.gz"),
        ("${NONE:-${P}}", "a.tar.gz"),
        ("${NONE+y}", ""),
        ("${P%.gz}", "a.tar"),
        ("${P%%.*}", "a"),
        ("${P#*.}", "tar.gz"),
        ("${P##*.}", "gz"),
        ("${P/a/b}", "b.tar.gz"),
        ("${P//a/b}", "b.tbr.gz"),
        ("${P/a*/b}", "b"),
        ("${P/none/b}", "a.tar.gz"),
        ("$NONE", ""),
    ],
)
def test_variables_and_quotes(text: str, value: str) -> None:
    assert expand(text, ENV) == value


@pytest.mark.parametrize("text", ["'open", '"open', "${A", "${}", "${A:-x", "${A^^}", "${NONE:?must be set}"])
def test_what_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(WordError):
        expand(text, ENV)


def test_the_message_of_a_required_variable_is_its_authors() -> None:
    with pytest.raises(WordError, match="NONE: must be set"):
        expand("${NONE:?must be set}", ENV)
    assert expand("${A:?must be set}", ENV) == "x y"


def test_the_escape_character_can_be_another() -> None:
    assert expand("C:\\x`$A$P", ENV, "`") == "C:\\x$Aa.tar.gz"


def test_quotes_in_a_here_document_are_text() -> None:
    assert expand_text('it\'s "$P" \\$P \\n\n', ENV) == 'it\'s "a.tar.gz" $P \\n\n'


def test_words_keep_their_quotes() -> None:
    assert split("A=\"b c\" d\\ e  'f\tg'") == ['A="b c"', "d\\ e", "'f\tg'"]
    with pytest.raises(WordError):
        split("it's")


@given(st.text(alphabet="ab $\\'\"{}:-+?#%/`A", max_size=20))
def test_any_text_is_a_value_or_an_error(text: str) -> None:
    for escape in "\\`":
        try:
            words = split(text, escape)
            values = [expand(word, ENV, escape) for word in words]
        except WordError:
            continue
        assert len(values) == len(words)


@given(st.dictionaries(st.sampled_from("ABC"), st.text(max_size=5)), st.sampled_from("ABCD"))
def test_a_variable_is_its_value_whatever_is_in_it(env: dict[str, str], name: str) -> None:
    assert expand(f"${name}|${{{name}}}", env) == f"{env.get(name, '')}|{env.get(name, '')}"
