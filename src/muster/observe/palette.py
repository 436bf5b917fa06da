"""One colour and one name for each stage and device state, the same in every figure, page and terminal.

Law: hue says who is responsible, lightness says queue or work: greys are ours, teal the sandbox, blue the engine,
yellow the model's own commands, purple the verifier, orange and red what had to be done again. The set keeps its
order of lightness under the common forms of colour blindness.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from muster.types import DeviceState, Stage

STAGE_COLOURS: Mapping[Stage, str] = MappingProxyType(
    {
        Stage.ADMISSION: "#b8bcc2",
        Stage.SANDBOX_QUEUE: "#9adbc8",
        Stage.SANDBOX_START: "#009e73",
        Stage.ENGINE_QUEUE: "#b5d7f0",
        Stage.PREFILL: "#56b4e9",
        Stage.RECOMPUTE: "#1f3f77",
        Stage.DECODE: "#0072b2",
        Stage.TOOL: "#f0c808",
        Stage.VERIFIER_QUEUE: "#e3c1dc",
        Stage.VERIFY: "#a8579b",
        Stage.INFRA_RETRY: "#c1272d",
        Stage.PUBLICATION_PAUSE: "#6d2077",
        Stage.REFILL: "#e07b00",
        Stage.ASSEMBLY: "#767b82",
    }
)

STAGE_LETTERS: Mapping[Stage, str] = MappingProxyType(
    {
        Stage.ADMISSION: "a",
        Stage.SANDBOX_QUEUE: "q",
        Stage.SANDBOX_START: "s",
        Stage.ENGINE_QUEUE: "e",
        Stage.PREFILL: "p",
        Stage.RECOMPUTE: "r",
        Stage.DECODE: "d",
        Stage.TOOL: "t",
        Stage.VERIFIER_QUEUE: "w",
        Stage.VERIFY: "v",
        Stage.INFRA_RETRY: "i",
        Stage.PUBLICATION_PAUSE: "u",
        Stage.REFILL: "f",
        Stage.ASSEMBLY: "y",
    }
)
"""What a bar is drawn with where there is no colour."""

STATE_COLOURS: Mapping[DeviceState, str] = MappingProxyType(
    {
        DeviceState.PREFILL: STAGE_COLOURS[Stage.PREFILL],
        DeviceState.RECOMPUTE: STAGE_COLOURS[Stage.RECOMPUTE],
        DeviceState.DECODE: STAGE_COLOURS[Stage.DECODE],
        DeviceState.IDLE: "#b8bcc2",
        DeviceState.ENV_WAIT: STAGE_COLOURS[Stage.TOOL],
        DeviceState.NO_WORK: "#d5d8dc",
        DeviceState.PUBLISH_PAUSE: STAGE_COLOURS[Stage.PUBLICATION_PAUSE],
        DeviceState.LOADING: "#c79ad0",
        DeviceState.DOWN: "#3b3f45",
        DeviceState.TRAIN: "#117733",
        DeviceState.BATCH_WAIT: "#e07b00",
        DeviceState.PUBLISH: STAGE_COLOURS[Stage.PUBLICATION_PAUSE],
        DeviceState.EVALUATE: "#44aa99",
        DeviceState.CHECKPOINT: "#8c6d31",
    }
)

STATE_NAMES: Mapping[DeviceState, str] = MappingProxyType(
    {
        DeviceState.PREFILL: "prefilling",
        DeviceState.RECOMPUTE: "recomputing lost cache",
        DeviceState.DECODE: "decoding",
        DeviceState.IDLE: "idle",
        DeviceState.ENV_WAIT: "waiting for environments",
        DeviceState.NO_WORK: "waiting for work",
        DeviceState.PUBLISH_PAUSE: "paused for weights",
        DeviceState.LOADING: "loading",
        DeviceState.DOWN: "down",
        DeviceState.TRAIN: "training",
        DeviceState.BATCH_WAIT: "waiting for a batch",
        DeviceState.PUBLISH: "publishing",
        DeviceState.EVALUATE: "evaluating",
        DeviceState.CHECKPOINT: "checkpointing",
    }
)


BOUND_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "engine": "engine",
        "path": "longest attempt",
        "slots": "slots",
        "kv": "KV cache",
        "verify": "verifiers",
        "boot": "sandbox starts",
        "cpu": "CPU",
        "joint": "engine, slots and cache together",
    }
)
"""What can hold a batch; `observe.bounds.lower` explains each."""


def name(stage: Stage) -> str:
    """`sandbox_queue` reads as "sandbox queue"."""
    return str(stage).replace("_", " ")
