"""PyTorch's Pipeline strategy: the layers of the model are cut into stages, and micro-batches flow through them."""

from __future__ import annotations

from muster.api.problems import Problem
from muster.api.spec import TrainingJobSpec
from muster.strategies.base import Strategy
from muster.strategies.torchrun import COLLECTIVES, PYTORCH, Mesh, launcher_problems, worker_strategy
from muster_contract.options import PipelineOptions
from muster_contract.pipeline import PipelinePlan
from muster_contract.strategy import StrategyRuntime

MESH = Mesh("pipeline")


def options_of(spec: TrainingJobSpec) -> PipelineOptions:
    return spec.options.for_trainer.pipeline or PipelineOptions()


def division_problems(strategy: Strategy, spec: TrainingJobSpec) -> list[Problem]:
    """Problems of stages and micro-batches, including their defaults."""
    options, mesh = options_of(spec), MESH.of(spec)
    plan = PipelinePlan.of(options, processes=mesh.pipeline)
    error = plan.problem(global_size=spec.batch.global_size, parts=mesh.data * spec.batch.accumulation_steps)
    return [Problem(f"spec.options.pipeline.{error[0]}", error[1])] if error else []


def asynchronous_problems(strategy: Strategy, spec: TrainingJobSpec) -> list[Problem]:
    """Options that need the gradient of a whole step, which a pipeline never has."""
    if is_synchronous(spec):
        return []
    settings = {"spec.options.mesh.data": MESH.of(spec).data, "spec.batch.accumulationSteps": spec.batch.accumulation_steps}
    message = "PipeDream updates each stage by itself, after each micro-batch; write 1, or options.pipeline.schedule: 1F1B"
    return [Problem(field, message) for field, number in settings.items() if number > 1]


def is_synchronous(spec: TrainingJobSpec) -> bool:
    return options_of(spec).schedule.is_synchronous


PIPELINE = worker_strategy(
    runtime=StrategyRuntime("Pipeline", PYTORCH, "muster_trainer.pytorch.pipeline:engine", collectives=COLLECTIVES),
    options=frozenset({"mesh", "pipeline"}),
    shards_state=True,
    is_synchronous=is_synchronous,
    data_parallel=MESH.data_parallel,
    checks=(launcher_problems, MESH.problems, division_problems, asynchronous_problems),
)
