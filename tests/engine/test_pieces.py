"""Replies in pieces: what is joined, what is kept, and that a server's stream is the whole reply."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.engine.http import wire
from muster.engine.http.replica import HttpReplica
from muster.engine.pieces import Piece, Pieces, Reply, after, pieces_of
from muster.engine.port import InFlight
from muster.engine.timing import EngineTiming
from muster.errors import EngineError
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.replica import EmulatedReplica
from muster.lab.emulated.serve import serving
from muster.lab.faults import INITIAL
from muster.types import Completion, Sampling, Session

SLOW = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.02, prefill_s=1e-5), max_running=8, kv_capacity_tokens=20_000, vocabulary=300
)
PROMPT = np.arange(3, 60, dtype=np.int32)


def whole(length: int) -> Completion:
    rng = np.random.default_rng(length)
    return Completion(
        tokens_T=rng.integers(3, 300, length).astype(np.int32),
        logprobs_T=-rng.random(length).astype(np.float32),
        versions_T=np.sort(rng.integers(0, 4, length)).astype(np.int32),
        finish="length",
        cached_tokens=7,
        decode_s=2.0,
        replica="r0",
    )


def same(a: Completion, b: Completion) -> None:
    for name in ("tokens_T", "logprobs_T", "versions_T"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert (a.finish, a.cached_tokens, a.decode_s) == (b.finish, b.cached_tokens, b.decode_s)


@given(length=st.integers(1, 40), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_pieces_over_the_wire_make_the_whole_wherever_it_is_cut(length: int, cuts: list[int]) -> None:
    reply, pieces = whole(length), Pieces()
    starts = sorted({0, *[cut for cut in cuts if cut <= length]})
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        until_end = after(replace(reply, **_until(reply, end)), start)
        piece = Piece(completion=until_end if end is None else replace(until_end, finish="abort"), last=end is None)
        event = json.loads(json.dumps(wire.piece_to_json(piece, "id", 5)))
        pieces.add(wire.piece_from_json(event, "r0"))
    assert pieces.complete
    same(pieces.completion, reply)


def _until(reply: Completion, end: int | None) -> dict[str, np.ndarray]:
    return {name: getattr(reply, name)[:end] for name in ("tokens_T", "logprobs_T", "versions_T")}


@given(length=st.integers(2, 40), data=st.data())
def test_a_reply_that_goes_on_elsewhere_is_the_sum_of_both(length: int, data: st.DataObject) -> None:
    reply = whole(length)
    cut = data.draw(st.integers(1, length - 1))
    kept = replace(reply, **_until(reply, cut), finish="abort", decode_s=0.5)
    rest = replace(after(reply, cut), decode_s=1.5, cached_tokens=99)
    joined = Reply(PROMPT, Sampling(max_tokens=length))
    joined.add(kept)
    np.testing.assert_array_equal(joined.prompt, np.concatenate([PROMPT, kept.tokens_T]))
    assert joined.whole is None
    same(joined.add(rest), reply)
    assert joined.whole is joined.kept


def test_nothing_is_kept_of_a_reply_that_had_not_begun() -> None:
    pieces = Pieces()
    assert pieces.kept is None
    pieces.add(Piece(completion=replace(whole(3), **_until(whole(3), 0), finish="abort"), last=False))
    assert pieces.kept is None


def test_a_kept_reply_that_is_complete_is_known_to_be() -> None:
    kept = replace(whole(5), finish="abort")
    stop = int(kept.tokens_T[-1])
    assert _kept(kept, Sampling(max_tokens=9)).whole is None
    for sampling, finish in (
        (Sampling(max_tokens=5), "length"),
        (Sampling(max_tokens=9, stop_tokens=(stop,)), "stop"),
        (Sampling(max_tokens=5, stop_tokens=(stop,)), "stop"),
    ):
        ended = _kept(kept, sampling).whole
        assert ended is not None
        assert ended.finish == finish


def test_the_rest_has_fewer_tokens_to_say_and_draws_other_numbers() -> None:
    reply = Reply(PROMPT, sampling := Sampling(max_tokens=10, seed=3, stop_tokens=(2,)))
    assert reply.sampling == sampling
    reply.add(replace(whole(4), finish="abort"))
    assert reply.sampling == Sampling(max_tokens=6, seed=7, stop_tokens=(2,))
    reply.add(replace(whole(1), finish="abort"))
    assert reply.sampling == Sampling(max_tokens=5, seed=8, stop_tokens=(2,))
    assert _kept(whole(4), Sampling(max_tokens=10)).sampling == Sampling(max_tokens=6)


def test_a_request_that_said_nothing_leaves_the_reply_as_it_was() -> None:
    nothing = replace(whole(3), **_until(whole(3), 0), finish="abort")
    reply = _kept(nothing, Sampling(max_tokens=10, seed=3, stop_tokens=(2,)))
    assert reply.whole is None
    assert reply.sampling == Sampling(max_tokens=10, seed=3, stop_tokens=(2,))
    np.testing.assert_array_equal(reply.prompt, PROMPT)


def _kept(said: Completion, sampling: Sampling) -> Reply:
    reply = Reply(PROMPT, sampling)
    reply.add(said)
    return reply


def test_a_replica_without_a_stream_says_all_at_once() -> None:
    async def main() -> list[Piece]:
        replica = EmulatedReplica("r0", SLOW)
        return [p async for p in pieces_of(replica, PROMPT, Sampling(max_tokens=200), Session(id="s"))]

    (piece,) = clock.run_virtual(main())
    assert piece.last
    assert len(piece.completion.tokens_T) == 200


# --- a server's stream ----------------------------------------------------------------------------------


class Served:
    """An emulated engine behind HTTP."""

    def __init__(self, engine: EmulatedEngine, replica: HttpReplica, url: str) -> None:
        self.engine, self.replica, self.url = engine, replica, url


def served(body: object) -> None:
    async def main() -> None:
        engine = EmulatedEngine(SLOW, name="r0", version=INITIAL)
        async with (
            clock.timeout(30),
            serving(engine, token="secret") as url,
            HttpReplica("r0", url, "secret") as replica,
        ):
            await body(Served(engine, replica, url))  # type: ignore[operator]

    clock.run(main())


def test_a_stream_says_now_and_then_what_is_new_and_is_the_whole_reply() -> None:
    async def body(there: Served) -> None:
        sampling = Sampling(max_tokens=75)
        pieces = [p async for p in there.replica.stream(PROMPT, sampling, Session(id="s"))]
        assert [p.last for p in pieces] == [*[False] * (len(pieces) - 1), True]
        assert len(pieces) >= 2
        joined = Pieces()
        for piece in pieces:
            joined.add(piece)
        once = await there.replica.generate(PROMPT, sampling, Session(id="s"))
        same(replace(joined.completion, cached_tokens=0, decode_s=0.0), replace(once, cached_tokens=0, decode_s=0.0))

    served(body)


def test_whoever_closes_a_stream_aborts_its_request() -> None:
    async def body(there: Served) -> None:
        async with aclosing(there.replica.stream(PROMPT, Sampling(max_tokens=3000), Session(id="s"))) as stream:
            assert not (await anext(stream)).last
        while (await there.replica.statistics()).running:
            await clock.sleep(0.01)

    served(body)


def test_a_stream_that_is_refused_is_an_error_with_its_status() -> None:
    async def body(there: Served) -> None:
        with pytest.raises(EngineError, match="token_ids") as caught:
            async for _ in there.replica.stream(np.array([999], np.int32), Sampling(), Session(id="s")):
                pass
        assert caught.value.evidence == {"status": 400}

    served(body)


def test_a_stream_whose_engine_fails_ends_with_what_it_said_and_the_reason() -> None:
    async def body(there: Served) -> None:
        said: list[Piece] = []
        with pytest.raises(EngineError, match="out of memory"):
            async for piece in there.replica.stream(PROMPT, Sampling(max_tokens=3000), Session(id="s")):
                said.append(piece)
                there.engine.fail("out of memory")
        assert sum(len(p.completion.tokens_T) for p in said) > 0

    served(body)


def test_a_publication_that_aborts_a_stream_ends_it_with_what_was_sampled() -> None:
    async def body(there: Served) -> None:
        pieces = Pieces()
        async with aclosing(there.replica.stream(PROMPT, Sampling(max_tokens=3000), Session(id="s"))) as stream:
            pieces.add(await anext(stream))
            await there.replica.pause(InFlight.ABORT)
            async for piece in stream:
                pieces.add(piece)
        await there.replica.resume()
        assert pieces.complete
        assert pieces.completion.finish == "abort"

    served(body)


def test_events_are_read_wherever_the_network_cuts_them() -> None:
    async def main() -> None:
        reply = whole(3000)  # its event is larger than what a reader buffers
        event = b"data: " + json.dumps(wire.piece_to_json(Piece(completion=reply, last=True), "id", 5)).encode()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: hello\n\n")
            for start in range(0, len(event), 40_000):
                writer.write(event[start : start + 40_000])
                await writer.drain()
                await clock.sleep(0.01)
            writer.write(b"\n\ndata: [DONE]\n\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            async with HttpReplica("r0", f"http://127.0.0.1:{port}") as replica:
                (piece,) = [p async for p in replica.stream(PROMPT, Sampling(), Session(id="s"))]
        same(piece.completion, reply)

    clock.run(main())


def test_a_stream_that_breaks_off_without_its_last_piece_is_an_error() -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1") as server:
            port = server.sockets[0].getsockname()[1]
            async with HttpReplica("r0", f"http://127.0.0.1:{port}") as replica:
                with pytest.raises(EngineError, match="broke off"):
                    async for _ in replica.stream(PROMPT, Sampling(), Session(id="s")):
                        pass

    clock.run(main())
