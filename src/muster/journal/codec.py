"""Values as SQLite holds them: scalars as they are, containers as JSON, tokens as packed arrays."""

from __future__ import annotations

import json
import types as pytypes
import typing
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, get_args, get_origin

import numpy as np

from muster.types import Segment


def encode(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    return value


@lru_cache(maxsize=64)
def encoder(row: type[Any]) -> Callable[[Any], Sequence[Any]]:
    """A function from a row to what SQLite holds of its fields. Most rows have scalars alone: they pass as they are."""
    hints = typing.get_type_hints(row)
    names = [f.name for f in fields(row)]
    values = attrgetter(*names)
    containers = [i for i, name in enumerate(names) if _is_container(hints[name])]
    if not containers:
        return values

    def encoded(one: Any) -> Sequence[Any]:
        held = list(values(one))
        for i in containers:
            held[i] = encode(held[i])
        return held

    return encoded


@lru_cache(maxsize=64)
def decoders(row: type[Any]) -> list[tuple[str, Any]]:
    """(field name, decode) for each field: JSON for containers, as it is for the rest."""
    hints = typing.get_type_hints(row)
    return [(f.name, json.loads if _is_container(hints[f.name]) else _identity) for f in fields(row)]


def _is_container(hint: Any) -> bool:
    if get_origin(hint) in (typing.Union, pytypes.UnionType):
        return any(_is_container(a) for a in get_args(hint))
    return get_origin(hint) in (dict, list, tuple)


def _identity(value: Any) -> Any:
    return value


def pack_segments(segments: tuple[Segment, ...]) -> bytes:
    """[count, lengths…] as int32, then tokens, logprobs, versions of each; sampled is versions >= 0."""
    header = np.array([len(segments), *(len(s) for s in segments)], np.int32)
    parts = [header.tobytes()]
    for s in segments:
        parts += [
            s.tokens_T.astype(np.int32).tobytes(),
            s.logprobs_T.astype(np.float32).tobytes(),
            s.versions_T.astype(np.int32).tobytes(),
        ]
    return zlib.compress(b"".join(parts), 1)


def unpack_segments(blob: bytes) -> tuple[Segment, ...]:
    data = zlib.decompress(blob)
    count = int(np.frombuffer(data, np.int32, 1)[0])
    lengths = np.frombuffer(data, np.int32, count, offset=4)
    offset = 4 * (1 + count)
    segments: list[Segment] = []
    for length in (int(n) for n in lengths):
        tokens = np.frombuffer(data, np.int32, length, offset=offset)
        logprobs = np.frombuffer(data, np.float32, length, offset=offset + 4 * length)
        versions = np.frombuffer(data, np.int32, length, offset=offset + 8 * length)
        offset += 12 * length
        segments.append(Segment(tokens_T=tokens, sampled_T=versions >= 0, logprobs_T=logprobs, versions_T=versions))
    return tuple(segments)
