"""Steps that make an image, one after the other. Law: values only; `recipe` makes them, `image` obeys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.sandbox.dockerfile.startup import Startup

Origin = int | str | None
"""Where files come from: an earlier stage by its number, an image by its name; None: the build context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDirectory:
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file whose content stands in the Dockerfile."""

    name: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """COPY and ADD. `sources` are patterns below the origin's root; `target` is absolute, its trailing slash kept."""

    line: int
    name: str  # COPY or ADD
    sources: tuple[str, ...]
    target: str
    documents: tuple[Document, ...] = ()
    origin: Origin = None
    owner: str = ""  # "user", "user:group", names or numbers; empty: root, or as in the stage it comes from
    mode: int | None = None
    extract: bool = False  # tar archives are unpacked, as ADD does
    parents: bool = False  # the directories above a source are kept
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMount:
    """RUN --mount: a cache that outlives the build, an empty directory, or files from elsewhere, never in the layer."""

    kind: str  # cache, tmpfs or bind
    target: str
    identity: str = ""  # of a cache: builds with the same one share it
    origin: Origin = None
    source: str = "/"
    writable: bool = True  # what is written to a bind mount is thrown away

    @property
    def binds(self) -> bool:
        return self.kind == "bind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    line: int
    text: str  # as written, for messages
    command: str  # bash source
    env: Mapping[str, str]
    workdir: str
    user: str = ""
    network: bool = True
    mounts: tuple[RunMount, ...] = ()


FileStep = MakeDirectory | Copy
Step = FileStep | Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The steps of one stage, and what a container of it starts with."""

    steps: tuple[Step, ...] = ()
    startup: Startup = field(default_factory=Startup)
