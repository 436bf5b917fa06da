from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.sandbox.output import HeadTail


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(2, 64))
def test_it_keeps_head_and_tail_and_counts_the_rest(chunks: list[bytes], cap: int) -> None:
    sink = HeadTail(cap)
    for chunk in chunks:
        sink.add(chunk)
    whole = b"".join(chunks)
    assert sink.total_bytes == len(whole)
    assert sink.omitted_bytes == max(0, len(whole) - cap)
    if len(whole) <= cap:
        assert sink.text() == whole.decode(errors="replace")
    else:
        assert sink.text().startswith(whole[: cap // 2].decode(errors="replace"))
        assert sink.text().endswith(whole[-(cap - cap // 2) :].decode(errors="replace"))
