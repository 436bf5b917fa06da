"""The configuration of a run: TOML in, one frozen and validated `RunConfig` out.

Law: each part's options are defined by its owner and gathered here; a part is handed its own section, never this
root. Unknown keys are errors that name the nearest valid one. `--set a.b=value` is the only other way in.

    file.toml ─► dict ◄─ overrides ─► RunConfig
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from muster.engine.config import EmbeddedEngineConfig, EngineConfig, RouterConfig, ServersConfig
from muster.errors import ConfigError
from muster.orchestrator.config import EvaluateConfig, LoopConfig, SchedulerConfig
from muster.publish.config import PublisherConfig
from muster.rollout.config import AgentConfig
from muster.sandbox.config import SandboxConfig
from muster.tasks.config import CurriculumConfig, SuiteConfig
from muster.trainer.config import NoCorrection, TrainerConfig
from muster.verifier.config import VerifierConfig

RENAMED = {"schedule.replay": "schedule.reuse", "keeper": "servers"}
"""Keys that had other names before, with their present ones: files and journals of before are read as they are."""


class RunConfig(BaseModel):
    """Everything a run is made from. The defaults are the starter run on one machine.

    Example: `RunConfig(model="starter", loop={"steps": 20}, schedule={"max_lag": 1})`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(default="starter", description="a Hugging Face folder, a .gguf file, or `starter`")
    seed: int = Field(default=0, description="seeds tasks, sampling and the trainer")
    loop: LoopConfig = Field(default_factory=LoopConfig)
    tasks: SuiteConfig = Field(default_factory=SuiteConfig)
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig)
    engine: EngineConfig = Field(default_factory=EmbeddedEngineConfig)
    servers: ServersConfig = Field(default_factory=ServersConfig)
    router: RouterConfig = Field(default_factory=RouterConfig)
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    schedule: SchedulerConfig = Field(default_factory=SchedulerConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    publish: PublisherConfig = Field(default_factory=PublisherConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)

    @model_validator(mode="after")
    def _lag_needs_correction(self) -> RunConfig:
        if self.schedule.max_lag > 0 and isinstance(self.trainer.correction, NoCorrection):
            raise ValueError(
                f"schedule.max_lag is {self.schedule.max_lag} and trainer.correction is none: "
                "train on stale tokens only with a correction, or set max_lag to 0"
            )
        return self

    @model_validator(mode="after")
    def _replay_can_work(self) -> RunConfig:
        schedule, reuse = self.schedule, self.schedule.reuse
        if not reuse.enabled:
            return self
        if isinstance(self.trainer.correction, NoCorrection):
            raise ValueError(
                "schedule.reuse is enabled and trainer.correction is none: what an older policy sampled needs a "
                "correction; choose one, or leave reuse off"
            )
        if not self.trainer.drift_tokens:
            raise ValueError(
                "schedule.reuse is enabled and trainer.drift_tokens is 0: nothing would tell how old a success is; "
                "set drift_tokens to some hundreds, or leave reuse off"
            )
        if reuse.max_share * schedule.groups_per_batch * schedule.group_size < 1:
            raise ValueError(
                f"schedule.reuse.max_share ({reuse.max_share:g}) of a batch of {schedule.groups_per_batch} x "
                f"{schedule.group_size} is less than one trajectory: raise it, or leave reuse off"
            )
        return self

    @model_validator(mode="after")
    def _distance_is_measured(self) -> RunConfig:
        if self.schedule.max_divergence is not None and not self.trainer.drift_tokens:
            raise ValueError(
                f"schedule.max_divergence is {self.schedule.max_divergence} and trainer.drift_tokens is 0: "
                "nothing would measure the distance; set drift_tokens to some hundreds, or leave max_divergence out"
            )
        return self

    @model_validator(mode="after")
    def _parts_agree(self) -> RunConfig:
        if self.agent.max_context_tokens > self.engine.max_model_len:
            raise ValueError(
                f"agent.max_context_tokens ({self.agent.max_context_tokens}) is more than the engine holds: "
                f"raise engine.max_model_len ({self.engine.max_model_len}) or lower it"
            )
        if self.trainer.serving_dtype != self.engine.dtype:
            raise ValueError(
                f"trainer.serving_dtype ({self.trainer.serving_dtype}) and engine.dtype ({self.engine.dtype}) differ: "
                "the engine could not prove that it holds what was published"
            )
        return self


def given(config: RunConfig | Path | str | Mapping[str, Any] | None) -> RunConfig:
    """A configuration however it is given: itself, the path of a TOML file, its values, or None for the defaults.

    Raises `ConfigError`. Example: `given({"model": "/models/mine", "loop": {"steps": 20}})`
    """
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, Mapping):
        return validate(config)
    return load(None if config is None else Path(config))


def load(path: Path | None = None, overrides: Iterable[str] = ()) -> RunConfig:
    """Read `path` (defaults alone if None), apply `key=value` overrides, validate. Raises `ConfigError`."""
    values = _read(path) if path else {}
    for override in overrides:
        assign(values, override)
    return validate(values, source=str(path) if path else "configuration")


def overridden(config: RunConfig, overrides: Iterable[str]) -> RunConfig:
    """`config` with `key=value` overrides, validated again. Raises `ConfigError`."""
    values = config.model_dump(mode="json", exclude_none=True)
    for override in overrides:
        assign(values, override)
    return validate(values)


def validate(values: Mapping[str, Any], *, source: str = "configuration") -> RunConfig:
    """Raises `ConfigError` that names every wrong key, its value and the fix."""
    try:
        return RunConfig.model_validate(_renamed(values))
    except ValidationError as error:
        problems = [_explain(dict(e)) for e in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(problems)) from None


def _renamed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """`values` with keys of before under their present names. Raises `ConfigError` where both are set."""
    for old, new in RENAMED.items():
        *path, last = old.split(".")
        found: Any = values
        for name in path:
            found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping) or last not in found:
            continue
        table = cast("Mapping[str, Any]", found)
        name = new.rpartition(".")[2]
        if name in table:
            raise ConfigError(f"{old} was renamed {new}, and both are set: leave {old} out")
        moved = {name if key == last else key: value for key, value in table.items()}
        values = {**values, path[0]: moved} if path else moved
    return values


def to_toml(config: RunConfig) -> str:
    """The resolved configuration, in the form that `load` reads."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def assign(values: dict[str, Any], override: str) -> None:
    """`a.b=3` sets values["a"]["b"]; the value is TOML, or else a string."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r}: write key=value, for example schedule.max_lag=1")
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text
    *path, last = key.strip().split(".")
    table: dict[str, Any] = values
    for name in path:
        inner: object = table.setdefault(name, {})
        if isinstance(inner, str):  # a bare word is a kind, as in engine=vllm; what follows are its options
            inner = table[name] = {"kind": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {override!r}: {name} is a value, not a section")
        table = cast("dict[str, Any]", inner)
    table[last] = value


def _explain(error: dict[str, Any]) -> str:
    location = _as_written([str(part) for part in error["loc"]])
    key = ".".join(location) or "the configuration"
    if error["type"] == "extra_forbidden":
        return f"unknown key {key!r}{_nearest(location)}"
    if error["type"] == "union_tag_not_found":
        return f"{key}: say which kind it is, with {key}.kind"
    if error["type"] == "union_tag_invalid":
        return f"{key}.kind: {error['ctx']['tag']!r} is none of {error['ctx']['expected_tags']}"
    value = f" (got {error['input']!r})" if location and not isinstance(error["input"], dict | BaseModel) else ""
    return f"{key}: {error['msg'].removeprefix('Value error, ')}{value}"


def _as_written(location: list[str]) -> list[str]:
    """Without the names of kinds, which pydantic puts between a section and its keys."""
    written: list[str] = []
    models: list[type[BaseModel]] = [RunConfig]
    for part in location:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        kinds = [m for m in models if "kind" in m.model_fields and m.model_fields["kind"].default == part]
        if kinds and not fields:
            models = kinds
            continue
        written.append(part)
        models = [m for field in fields for m in _models_in(field.annotation)]
    return written


def _nearest(location: list[str]) -> str:
    """The closest valid name, wherever in the configuration it is."""
    names = list(dict.fromkeys(key_paths()))  # kinds of one section share names
    here = [n for n in names if n.split(".")[:-1] == location[:-1]]
    close = difflib.get_close_matches(".".join(location), here, 1, 0.5)
    close = close or [n for n in names if n.split(".")[-1] == location[-1]]
    close = close or difflib.get_close_matches(".".join(location), names, 1, 0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; valid here: {', '.join(n.split('.')[-1] for n in here)}"


def key_paths(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterable[str]:
    """Every key that may be set, sections included, as `schedule.max_lag`; those that kinds share more than once."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for inner in _models_in(field.annotation):
            yield from key_paths(inner, f"{prefix}{name}.")


def _models_in(annotation: Any) -> Iterable[type[BaseModel]]:
    """The models that a field may hold: itself, or those of a union, however it is annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
