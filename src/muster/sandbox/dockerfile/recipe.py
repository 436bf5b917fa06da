"""From the instructions of a stage to what is to be done. Law: pure; the base's start-up values come in, those of the
stage go out. What we do not do is an error that names the line and the way out.

    BuildStage + Startup of its base ─► [MakeDirectory | Copy | Run]* + Startup

CMD, ENTRYPOINT, HEALTHCHECK and SHELL are recorded in the start-up values. Without effect on a sandbox: EXPOSE, LABEL,
MAINTAINER, STOPSIGNAL, VOLUME (what is written there is in the layer like all else). Refused: ONBUILD, ADD of a URL,
RUN with secrets, ssh or the host's network.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from muster.errors import TaskError
from muster.sandbox.defaults import BASE_ENV
from muster.sandbox.dockerfile.options import absolute, array, health
from muster.sandbox.dockerfile.parsing import BuildStage, Dockerfile, HereDocument, Instruction
from muster.sandbox.dockerfile.startup import ARCHITECTURE, Startup
from muster.sandbox.dockerfile.steps import Copy, Document, MakeDirectory, Origin, Recipe, Run, RunMount, Step
from muster.sandbox.dockerfile.words import WordError, expand, expand_text, split

SCRATCH = "scratch"
_VALUED = frozenset({"ADD", "ARG", "COPY", "ENV", "HEALTHCHECK", "RUN", "SHELL", "USER", "WORKDIR"})
_PLATFORM = {
    f"{side}{key}": value
    for side in ("TARGET", "BUILD")
    for key, value in (("OS", "linux"), ("ARCH", ARCHITECTURE), ("PLATFORM", f"linux/{ARCHITECTURE}"), ("VARIANT", ""))
}


class Stages:
    """The stages of one Dockerfile, under given build arguments.

    Example:
        stages = Stages(parse("FROM debian\\nRUN make"))
        recipe = stages.recipe(0, Startup())
    """

    def __init__(self, dockerfile: Dockerfile, build_args: Mapping[str, str] | None = None) -> None:
        self.dockerfile = dockerfile
        self._build_args = dict(build_args or {})
        self._globals = dict(_PLATFORM)
        for it in dockerfile.arguments:
            with self._located(it):
                self._globals |= self.arguments(it, self._globals)

    def target(self, name: str | None) -> int:
        """The number of the stage of that name; the last one for None. Raises `TaskError`."""
        stages = self.dockerfile.stages
        if name is None:
            return len(stages) - 1
        found = self._number(name, len(stages))
        if found is None:
            names = ", ".join(s.name for s in stages if s.name) or "none"
            raise TaskError(f"{self.dockerfile.file}: has no stage {name!r} to build; its named stages: {names}")
        return found

    def base(self, number: int) -> int | str:
        """Base that the stage is FROM: the number of an earlier one, or the name of an image (`SCRATCH` for none)."""
        stage = self.dockerfile.stages[number]
        with self._located(stage):
            name = expand(stage.base, self._globals, self.dockerfile.escape)
        if not name:
            raise self.dockerfile.error(stage, f"{stage.base} is empty: give the ARG before FROM a default")
        earlier = next((n for n in range(number) if self.dockerfile.stages[n].name == name.lower()), None)
        return name if earlier is None else earlier

    def recipe(self, number: int, base: Startup) -> Recipe:
        """Raises `TaskError` naming file, line and instruction."""
        stage = self.dockerfile.stages[number]
        reader = _Reader(self, stage, number, base)
        for it in stage.instructions:
            with self._located(it):
                reader.take(it)
        return Recipe(steps=tuple(reader.steps), startup=reader.startup)

    def origin(self, it: Instruction, text: str, before: int) -> Origin:
        """Origin that --from names."""
        number = self._number(text, before)
        if number is None and (text.isdigit() or self._number(text, len(self.dockerfile.stages)) is not None):
            raise self.dockerfile.error(it, f"--from={text} is not a stage before this one")
        return text if number is None else number

    def arguments(self, it: Instruction, known: Mapping[str, str]) -> dict[str, str]:
        """The values that an ARG gives: the builder's, else its own default, else that of before the first FROM."""
        taken: dict[str, str] = {}
        for word in split(it.value, self.dockerfile.escape):
            name, separator, default = word.partition("=")
            if name in self._build_args:
                taken[name] = self._build_args[name]
            elif separator:
                taken[name] = expand(default, {**known, **taken}, self.dockerfile.escape)
            elif name in self._globals:
                taken[name] = self._globals[name]
        return taken

    @contextmanager
    def _located(self, it: Instruction | BuildStage) -> Generator[None]:
        try:
            yield
        except WordError as error:
            raise self.dockerfile.error(it, str(error)) from None

    def _number(self, name: str, before: int) -> int | None:
        if name.isdigit():
            return int(name) if int(name) < before else None
        return next((n for n in range(before) if self.dockerfile.stages[n].name == name.lower()), None)


class _Reader:
    """Collects the steps of one stage, one instruction after the other."""

    def __init__(self, stages: Stages, stage: BuildStage, number: int, base: Startup) -> None:
        self.steps: list[Step] = []
        self.startup = base
        self._stages = stages
        self._file = stages.dockerfile
        self._number = number
        self._args: dict[str, str] = {}
        self._own_command = False

    def take(self, it: Instruction) -> None:
        if not it.value and it.name in _VALUED:
            raise self._error(it, "has no value")
        match it.name:
            case "ARG":
                self._args |= self._stages.arguments(it, self._known())
            case "ENV":
                self._set(env={**self.startup.env, **self._pairs(it)})
            case "WORKDIR":
                self._set(workdir=absolute(self.startup.workdir, self._expand(it.value)).rstrip("/") or "/")
                self.steps.append(MakeDirectory(path=self.startup.workdir))
            case "USER":
                self._set(user=self._expand(it.value))
            case "SHELL":
                if not (words := array(it.value)):
                    raise self._error(it, 'write it as an array of strings: SHELL ["/bin/bash", "-c"]')
                self._set(shell=tuple(words))
            case "CMD":
                self._set(command=self._argv(it.value))
                self._own_command = True
            case "ENTRYPOINT":
                command = self.startup.command if self._own_command else ()  # that of the base was not for this one
                self._set(entrypoint=self._argv(it.value), command=command)
            case "HEALTHCHECK":
                self._set(health=health(it.value, it.flags))
            case "COPY" | "ADD":
                self._copy(it)
            case "RUN":
                self._run(it)
            case "ONBUILD":
                raise self._error(it, "not supported: write the instruction into the Dockerfile that builds on this")
            case _:  # EXPOSE, LABEL, MAINTAINER, STOPSIGNAL, VOLUME
                pass

    # --- files ----------------------------------------------------------------------------------------

    def _copy(self, it: Instruction) -> None:
        step = Copy(line=it.line, name=it.name, sources=(), target="/", extract=it.name == "ADD")
        for flag, value in it.flags:
            step = self._copy_flag(it, step, flag, self._expand(value))
        documents = {d.word: Document(name=d.name, content=self._content(d)) for d in it.documents}
        words = array(it.value)
        if words is None:
            words = split(it.value, self._file.escape)
        *given, target = [w if w in documents else self._expand(w) for w in words] or [""]
        if not given:
            raise self._error(it, "needs at least one source and a target")
        if len(given) > 1 and not target.endswith("/"):
            raise self._error(it, "several sources need a target that ends with /")
        sources = [word for word in given if word not in documents]
        for word in sources if it.name == "ADD" else ():
            if re.match(r"(https?|ftp|git|ssh)://|git@", word):
                raise self._error(it, f"{word}: URLs are not fetched; use RUN curl -fsSL -o FILE {word}")
        self.steps.append(
            replace(
                step,
                sources=tuple(sources),
                documents=tuple(documents.values()),
                target=absolute(self.startup.workdir, target),
            )
        )

    def _copy_flag(self, it: Instruction, step: Copy, flag: str, value: str) -> Copy:
        match flag:
            case "from" if it.name == "COPY" and value:
                return replace(step, origin=self._stages.origin(it, value, self._number))
            case "chown" if value:
                return replace(step, owner=value)
            case "chmod":
                if not re.fullmatch(r"[0-7]{3,4}", value):
                    raise self._error(it, f"--chmod={value}: give the mode as an octal number, such as 755")
                return replace(step, mode=int(value, 8))
            case "link":
                return step  # a matter of caching alone
            case "parents":
                return replace(step, parents=value != "false")
            case "exclude" if value:
                return replace(step, exclude=(*step.exclude, value))
            case _:
                raise self._error(
                    it, f"--{flag} is not supported; --from, --chown, --chmod, --link, --parents, --exclude are"
                )

    def _content(self, document: HereDocument) -> str:
        if not document.expand:
            return document.content
        return expand_text(document.content, self._known(), self._file.escape)

    # --- commands -------------------------------------------------------------------------------------

    def _run(self, it: Instruction) -> None:
        network = True
        mounts: list[RunMount] = []
        for flag, value in it.flags:
            if flag == "mount":
                mounts.append(self._mount(it, value))
            elif flag == "network" and value in ("default", "none"):
                network = value == "default"
            else:
                raise self._error(it, f"--{flag}={value} is not supported; --mount and --network=default or none are")
        self.steps.append(
            Run(
                line=it.line,
                text=it.value,
                command=self._command(it),
                env={**self._args, **self.startup.env},
                workdir=self.startup.workdir,
                user=self.startup.user,
                network=network,
                mounts=tuple(mounts),
            )
        )

    def _command(self, it: Instruction) -> str:
        """Bash source that runs it as the stage's shell, or no shell at all, would."""
        if words := array(it.value):
            return f"( exec {shlex.join(words)} )"
        if len(it.documents) == 1 and it.value == it.documents[0].word:
            content = it.documents[0].content
            return _script(content) if content.startswith("#!") else shlex.join([*self.startup.shell, content])
        text = "\n".join([it.value, *(d.raw for d in it.documents)])
        return shlex.join([*self.startup.shell, text])

    def _mount(self, it: Instruction, text: str) -> RunMount:
        pairs = (part.partition("=") for part in text.split(","))
        options = {key: self._expand(value) for key, _, value in pairs}
        kind = options.get("type", "bind")
        if kind in ("secret", "ssh"):
            raise self._error(it, f"--mount=type={kind} is refused: no secret of this machine enters an image")
        target = options.get("target") or options.get("dst") or options.get("destination") or ""
        if kind not in ("cache", "tmpfs", "bind") or not target:
            raise self._error(it, f"--mount={text}: needs type=cache, tmpfs or bind, and target=DIRECTORY")
        target = absolute(self.startup.workdir, target).rstrip("/")
        given = options.get("from", "")
        return RunMount(
            kind=kind,
            target=target,
            identity=options.get("id") or target,
            origin=self._stages.origin(it, given, self._number) if given else None,
            source=options.get("source") or options.get("src") or "/",
            writable=kind != "bind" or bool({"rw", "readwrite"} & options.keys()),
        )

    def _argv(self, value: str) -> tuple[str, ...]:
        words = array(value)
        if words is not None:
            return tuple(words)
        return (*self.startup.shell, value) if value else ()

    # --- values ---------------------------------------------------------------------------------------

    def _pairs(self, it: Instruction) -> dict[str, str]:
        first, _, rest = it.value.partition(" ")
        if "=" not in first:  # the old form: ENV KEY all the rest
            return {first: self._expand(rest.strip())}
        pairs: dict[str, str] = {}
        for word in split(it.value, self._file.escape):
            key, separator, value = word.partition("=")
            if not separator or not (name := self._expand(key)):
                raise self._error(it, f"{word!r} is not KEY=value")
            pairs[name] = self._expand(value)
        return pairs

    def _expand(self, text: str) -> str:
        return expand(text, self._known(), self._file.escape)

    def _known(self) -> dict[str, str]:
        """ENV wins over ARG; a PATH there always is."""
        return {"PATH": BASE_ENV["PATH"], **self._args, **self.startup.env}

    def _set(self, **changes: object) -> None:
        self.startup = replace(self.startup, **changes)  # pyright: ignore[reportArgumentType]

    def _error(self, it: Instruction, message: str) -> TaskError:
        return self._file.error(it, message)


def _script(content: str) -> str:
    """A here-document that begins with #! is a program of its own."""
    return (
        f'script=$(mktemp) && printf %s {shlex.quote(content)} > "$script" && chmod 755 "$script"; '
        '( exec "$script" ); status=$?; rm -f "$script"; ( exit $status )'
    )
