"""A `docker-compose.yaml` with one service, collapsed into what an image needs.

    read_compose(path) ─YAML─► one service ─┬─► used     image, build, command, environment, user, healthcheck, …
                                            ├─► dropped  names, ports, logs; limits, because task.toml has them
                                            └─► refused  all else, by name, with the fix

Law: data only; nothing it names is run or looked up here. Variables are those of the harness that the file was written
for, and what the caller passes: never the environment of the host.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from muster.tasks.yaml_file import YamlFile, load_yaml
from muster.types import HealthCheck

NAMES: Final = ("docker-compose.yaml", "docker-compose.yml")

HARNESS: Final[Mapping[str, str]] = {
    "TEST_DIR": "/tests",
    "T_BENCH_TEST_DIR": "/tests",
    "CONTEXT_DIR": ".",
    "T_BENCH_TASK_DOCKER_FILE_PATH": "Dockerfile",
}
"""Template variables with a meaning of their own."""
_OWN_NAMES: Final = re.compile(r"\$\{?(MAIN_IMAGE_NAME|PREBUILT_IMAGE_NAME|T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME)\b")
"""An `image` of the harness's own naming: what `build` makes."""
_LOGS: Final = re.compile(
    r"\$\{?(T_BENCH_TASK_LOGS_PATH|T_BENCH_TASK_AGENT_LOGS_PATH|HOST_(VERIFIER_LOGS|AGENT_LOGS|ARTIFACTS)_PATH)\b"
)
"""Sources of the volumes that every harness mounts."""

# fmt: off
_USED: Final = frozenset((
    "build", "command", "entrypoint", "environment", "healthcheck", "image", "network_mode", "user", "working_dir",
))
_DROPPED: Final = frozenset((
    "annotations", "attach", "container_name", "cpus", "deploy", "expose", "hostname", "init", "labels", "logging",
    "mem_limit", "networks", "platform", "ports", "profiles", "pull_policy", "restart", "stdin_open",
    "stop_grace_period", "stop_signal", "tty", "volumes",
))
_USED_OF_BUILD: Final = frozenset(("context", "dockerfile", "args", "target"))
_DROPPED_OF_BUILD: Final = frozenset((
    "cache_from", "cache_to", "labels", "network", "no_cache", "platforms", "pull", "shm_size", "tags",
))
_TOP: Final = frozenset(("version", "name", "networks", "volumes", "services"))
# fmt: on

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_IDLE: Final = re.compile(r"(?:\S*/)?(?:sleep (?:infinity|inf|\d+[smhd]?)|tail -f /dev/null|(?:ba)?sh(?: -[il]+)*|cat)")
_SHELL_C: Final = re.compile(r"(?:\S*/)?(?:ba)?sh -l?c (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeImage:
    """Image of one service, as the compose file says it. Paths are absolute; None: it says nothing."""

    service: str
    context: Path
    dockerfile: Path | None = None  # None: `image` is ready-made, or the context's own Dockerfile
    docker_image: str | None = None
    build_args: Mapping[str, str] = field(default_factory=dict[str, str])
    target: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: HealthCheck | None = None

    @property
    def argv(self) -> str:
        """Command line that it runs, for people to read; empty where the image decides."""
        return " ".join((*self.entrypoint, *self.command))

    @property
    def idle(self) -> bool:
        """Whether what it runs only keeps the container alive."""
        inner = _SHELL_C.fullmatch(self.argv)
        words = inner[1] if inner else self.argv
        return not words or bool(_IDLE.fullmatch(words.removeprefix("exec ").strip()))


def read_compose(path: Path, variables: Mapping[str, str]) -> ComposeImage:
    """Collapse the one service of `path`. Raises `TaskError`: file and key, what is not supported, and the fix."""
    return _ComposeFile(path, {**variables, **HARNESS}).image()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    context: Path
    dockerfile: Path | None = None
    args: Mapping[str, str] = field(default_factory=dict[str, str])
    target: str | None = None


class _ComposeFile(YamlFile):
    """Compose file, key by key."""

    def image(self) -> ComposeImage:
        whole = self.table(load_yaml(self.path), "the file")
        self._only(whole, _TOP, "")
        services = self.table(whole.get("services") or {}, "services")
        if len(services) != 1:
            self.fail(
                "services",
                f"{', '.join(services) or 'none found'}; tasks of several services are not supported yet, "
                "only one service with a Dockerfile",
            )
        ((name, found),) = services.items()
        key = f"services.{name}"
        service = self.table(found or {}, key)
        self._only(service, _DROPPED | _USED, key)
        self._volumes(service.get("volumes") or [], set(self.table(whole.get("volumes") or {}, "volumes")), key)
        return self._collapsed(name, service, key)

    def _collapsed(self, name: str, service: Mapping[str, Any], key: str) -> ComposeImage:
        build = self._build(service.get("build"), f"{key}.build")
        image = service.get("image")
        ready = isinstance(image, str) and "build" not in service and not _OWN_NAMES.match(image)
        self._network(service.get("network_mode"), key)
        return ComposeImage(
            service=name,
            context=build.context,
            dockerfile=build.dockerfile,
            docker_image=self.text(image, f"{key}.image") if ready else None,
            build_args=build.args,
            target=build.target,
            env=self._environment(service.get("environment"), f"{key}.environment"),
            workdir=self.optional(service.get("working_dir"), f"{key}.working_dir"),
            user=self.optional(service.get("user"), f"{key}.user"),
            entrypoint=self._entrypoint(service.get("entrypoint"), f"{key}.entrypoint"),
            command=self._command(service.get("command"), f"{key}.command"),
            health=self._health(service.get("healthcheck"), f"{key}.healthcheck"),
        )

    # --- build ------------------------------------------------------------------------------------------

    def _build(self, found: object, key: str) -> _Build:
        here = self.path.parent
        if found is None:
            return _Build(context=here)
        table = {"context": found} if isinstance(found, str) else self.table(found, key)
        self._only(table, _DROPPED_OF_BUILD | _USED_OF_BUILD, key)
        context = self._inside(here, self.text(table.get("context", "."), f"{key}.context"), f"{key}.context")
        name = self.text(table.get("dockerfile", "Dockerfile"), f"{key}.dockerfile")
        return _Build(
            context=context,
            dockerfile=self._inside(context, name, f"{key}.dockerfile"),
            args=self._environment(table.get("args"), f"{key}.args"),
            target=self.optional(table.get("target"), f"{key}.target"),
        )

    def _inside(self, base: Path, relative: str, key: str) -> Path:
        path = None if "\0" in relative else (base / relative).resolve()
        if path is None or not path.is_relative_to(self.path.parent.resolve()):
            return self.fail(key, f"{relative!r} leads out of {self.path.parent}; put the files below it")
        return path

    # --- run --------------------------------------------------------------------------------------------

    def _environment(self, found: object, key: str) -> dict[str, str]:
        """A list of NAME=value, or a table; a bare NAME is for the caller's variables to fill, or is left out."""
        if found is None:
            return {}
        pairs: Iterable[tuple[str, object]]
        if isinstance(found, list):
            texts = [self.raw(item, key) for item in cast("list[object]", found)]
            pairs = [(name, value if equals else None) for name, equals, value in (t.partition("=") for t in texts)]
        else:
            pairs = self.table(found, key).items()
        resolved = {
            name: self.variables.get(name) if value is None else self.text(value, f"{key}.{name}")
            for name, value in pairs
        }
        return {name: value for name, value in resolved.items() if value is not None}

    def _entrypoint(self, found: object, key: str) -> tuple[str, ...]:
        words = self._command(found, key)
        if found is not None and not words:
            self.fail(key, "taking away the image's own is not supported; write ENTRYPOINT [] in the Dockerfile")
        return words

    def _command(self, found: object, key: str) -> tuple[str, ...]:
        if found is None:
            return ()
        if isinstance(found, list):
            return tuple(self.text(item, key) for item in cast("list[object]", found))
        try:
            return tuple(shlex.split(self.text(found, key)))
        except ValueError as error:
            self.fail(key, f"{error}; write a list of words")

    def _health(self, found: object, key: str) -> HealthCheck | None:
        if found is None:
            return None
        table = self.table(found, key)
        test = table.get("test")
        if table.get("disable") or test in (None, ["NONE"]):
            return None
        retries = table.get("retries", 3)
        if type(retries) is not int or retries < 1:
            self.fail(f"{key}.retries", f"expected a whole number of 1 or more, found {retries!r}")
        return HealthCheck(
            command=self._test(test, f"{key}.test"),
            interval_s=self._seconds(table.get("interval", "30s"), f"{key}.interval"),
            timeout_s=self._seconds(table.get("timeout", "30s"), f"{key}.timeout"),
            start_period_s=self._seconds(table.get("start_period", "0s"), f"{key}.start_period"),
            retries=retries,
        )

    def _test(self, found: object, key: str) -> str:
        if not isinstance(found, list):
            return self.text(found, key)
        kind, *words = [self.text(item, key) for item in cast("list[object]", found)] or [""]
        if kind == "CMD" and words:
            return shlex.join(words)
        if kind == "CMD-SHELL" and len(words) == 1:
            return words[0]
        return self.fail(key, f"expected a text, or a list that begins with CMD or CMD-SHELL, found {found!r}")

    def _seconds(self, found: object, key: str) -> float:
        text = self.raw(found, key)
        if text == "0":
            return 0.0
        if not re.fullmatch(f"(?:{_DURATION.pattern})+", text):
            self.fail(key, f"expected a duration such as '10s' or '1m30s', found {found!r}")
        return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))

    # --- what cannot be had -----------------------------------------------------------------------------

    def _network(self, found: object, key: str) -> None:
        if found not in (None, "none", "bridge"):
            self.fail(f"{key}.network_mode", f"{found!r} is not supported; remove it")

    def _volumes(self, found: object, named: set[str], key: str) -> None:
        """Logs are the harness's, and a volume of Docker's own is empty or has what the image has there."""
        for item in cast("list[object]", found) if isinstance(found, list) else [found]:
            if isinstance(item, dict):
                table = cast("Mapping[str, Any]", item)
                source, is_bind = str(table.get("source", "")), table.get("type") == "bind"
            else:
                source, _, target = self.raw(item, key).rpartition(":")
                source, is_bind = source.split(":")[0], bool(source) and target != ""
            if is_bind and source not in named and not _LOGS.match(source):
                self.fail(
                    f"{key}.volumes", f"{source!r} would mount files of the host; COPY them in the Dockerfile instead"
                )

    def _only(self, table: Mapping[str, Any], known: Iterable[str], key: str) -> None:
        unknown = [name for name in table if name not in known and not name.startswith("x-")]
        if unknown:
            where = f"{key}.{unknown[0]}" if key else unknown[0]
            self.fail(where, "is not supported in a sandbox; remove it, or do without compose")
