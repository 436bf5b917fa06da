"""The whole algorithm on one page: sample groups, grade them by fact, train on those with gradient, publish.

    python examples/minimal.py [steps]

What `muster train` adds to this: scheduling by group completion, overlap of generation and training, a journal
that survives a kill, refills, evaluation, reports.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

from muster import clock
from muster.engine.config import EmbeddedEngineConfig
from muster.engine.embedded.launch import launch
from muster.model.tokenizer import tokenizer_from
from muster.model.weights import resolve
from muster.publish import transports
from muster.publish.config import MemoryConfig, PublisherConfig
from muster.publish.publisher import Canary, Publisher
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.renderer import Renderer
from muster.rollout.spans import SpanRecorder
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.tasks.harbor import load_directory
from muster.trainer.config import TrainerConfig
from muster.trainer.port import Trainer
from muster.trainer.process.trainer import ProcessTrainer
from muster.types import Batch, Graded, Launch, ReadyGroup, Task
from muster.verifier.config import VerifierConfig
from muster.verifier.script import ScriptVerifier
from muster_suites.write import generate

GROUPS, SIBLINGS, TEMPERATURE = 4, 8, 0.7


async def sample_group(rollout: Rollout, task: Task, number: int) -> ReadyGroup | None:
    """G attempts at one task; None when fewer than two could be graded, or when all rewards are equal."""
    launches = [Launch(id=f"g{number}.{i}", group_id=f"g{number}", task=task, sibling=i) for i in range(SIBLINGS)]
    attempts = await asyncio.gather(*(rollout.run(x, SpanRecorder(x.id)) for x in launches))
    graded = tuple(t for t in attempts if isinstance(t.outcome, Graded))  # the others say nothing about the model
    if len(graded) < 2:
        return None
    group = ReadyGroup(id=f"g{number}", task_id=task.id, submission=number, members=graded, ready_at=clock.now())
    return group if group.has_gradient else None


async def train(
    steps: int, tasks: Sequence[Task], agent: Agent, rollout: Rollout, trainer: Trainer, publisher: Publisher
) -> None:
    rng = np.random.default_rng(0)
    canary = agent.begin(tasks[0]).transcript.tokens
    number = 0
    for step in range(steps):
        opened, groups = clock.now(), []
        while len(groups) < GROUPS:  # groups without gradient are replaced before the batch closes
            missing = range(number, number + GROUPS - len(groups))
            chosen = [tasks[i] for i in rng.integers(len(tasks), size=len(missing))]
            sampled = await asyncio.gather(*map(sample_group, [rollout] * len(missing), chosen, missing))
            groups += [g for g in sampled if g is not None]
            number += len(missing)
        batch = Batch(step=step, groups=tuple(groups), opened_at=opened, ready_at=clock.now())
        result = await trainer.step(batch)
        trained = clock.now()

        publication = await trainer.export(step + 1)
        (expected,) = await trainer.score([canary], temperature=TEMPERATURE)
        proof = Canary(tokens=canary, temperature=TEMPERATURE, logprobs_T=expected)
        (record,) = await publisher.publish(publication, proof, trained_at=trained, export_s=0.0)
        transports.retire(publication)

        reward = np.mean([r for g in groups for r in g.rewards])
        print(
            f"step {step + 1}: reward {reward:.2f}  time to trainable batch {batch.ttb_s:.1f} s  "
            f"trained in {result.duration_s:.1f} s  k3 {result.metrics['k3']:.1e}  pause {record.pause_s:.2f} s"
        )


async def main(steps: int, directory: Path) -> None:
    model = resolve("starter")
    tasks = load_directory(directory / "tasks", strict=True).tasks
    async with AsyncExitStack() as stack:
        backend = NamespaceBackend(SandboxConfig(), run="minimal")
        stack.push_async_callback(backend.close)
        pool = Pool(backend, SandboxConfig())
        stack.push_async_callback(pool.close)
        engine = await stack.enter_async_context(launch(EmbeddedEngineConfig(), model, "engine0"))
        exporter = transports.exporter_for(MemoryConfig(), run_label="minimal", directory=directory)
        stack.callback(exporter.clear)
        trainer = await stack.enter_async_context(
            ProcessTrainer(TrainerConfig(), model=str(model), temperature=TEMPERATURE, exporter=exporter)
        )
        agent = Agent(
            engine=engine, renderer=Renderer(tokenizer_from(model)), config=AgentConfig(temperature=TEMPERATURE)
        )
        rollout = Rollout(agent=agent, pool=pool, verifier=ScriptVerifier(pool, VerifierConfig()))
        await train(steps, tasks, agent, rollout, trainer, Publisher([engine], PublisherConfig()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        generate(Path(name) / "tasks", seed=0, per_family=8, split="train")
        clock.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, Path(name)))
