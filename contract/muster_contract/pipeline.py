"""The division of a pipeline's work: stages among processes, and micro-batches of a step."""

from __future__ import annotations

from dataclasses import dataclass

from muster_contract.options import PipelineOptions, Schedule


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """The stages and micro-batches of a pipeline over `processes` in a row."""

    schedule: Schedule
    processes: int
    stages: int
    micro_batches: int

    @classmethod
    def of(cls, options: PipelineOptions, *, processes: int) -> PipelinePlan:
        """The plan, with defaults for fields that the job does not set. A single process runs everything in one stage."""
        count = 1 if processes == 1 else options.stages or processes
        return cls(schedule=options.schedule, processes=processes, stages=count, micro_batches=options.micro_batches or count)

    def problem(self, *, global_size: int | None, parts: int) -> tuple[str, str] | None:
        """The field of `spec.options.pipeline` that does not fit, and the reason. None if all fields fit.

        Each of `parts` (data-parallel ways x accumulation steps) of the batch goes through the pipeline in micro-batches of one size.
        """
        if message := self._stage_problem():
            return "stages", message
        if message := self._micro_batch_problem(global_size, parts):
            return "microBatches", message
        return None

    def _stage_problem(self) -> str | None:
        processes, stages = self.processes, self.stages
        if stages != processes:
            return f"{stages} stages for {processes} processes in a row; write {processes}, or options.mesh with pipeline: {stages}"
        return None

    def _micro_batch_problem(self, global_size: int | None, parts: int) -> str | None:
        count = self.micro_batches
        if self.schedule is Schedule.ONE_FORWARD_ONE_BACKWARD and count < self.stages:
            return f"1F1B needs at least as many micro-batches as the {self.stages} stages; write {self.stages}"
        if global_size is not None and global_size % (parts * count):
            shared = f"{global_size} samples" + (f" in {parts} parts (data-parallel ways x accumulation steps)" if parts > 1 else "")
            near = max(round(global_size / (parts * count)), 1) * parts * count
            return f"{count} micro-batches do not divide a batch of {shared}; write a number that does, or batch.globalSize: {near}"
        return None
