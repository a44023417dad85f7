"""The point at which training resumes. Rank 0 decides for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muster_contract.errors import StorageUnavailable
from muster_contract.events import MAX_SKIPPED, CommitReason, Resumed, ResumeSource, Skipped
from muster_contract.trainer_spec import CheckpointSpec
from muster_contract.wire import decode, document, encode, wire_field
from muster_trainer.checkpoint import Selection, Store, newest_step, select
from muster_trainer.checkpoint.manifest import check_identity
from muster_trainer.checkpoint.objects import Location, location_of
from muster_trainer.training.agreement import Ranks, agree

if TYPE_CHECKING:  # the library for programs of users imports this module, and may have no numpy
    pass


@document
class ResumePoint:
    """The step after which training continues, and the checkpoint to restore. If there is no checkpoint, the step is 0, unless the program
    restores a checkpoint of its own."""

    step: int = wire_field(default=0, minimum=0)
    path: str | None = wire_field(default=None)
    committed_step: int | None = wire_field(default=None, minimum=0)
    """The step of the newest commit, even if that is damaged."""
    skipped: tuple[Skipped, ...] = wire_field(default=(), max_items=MAX_SKIPPED)
    """Newer checkpoints that are damaged."""
    reason: CommitReason | None = wire_field(default=None)
    """The reason for which the checkpoint was saved."""
    source: ResumeSource | None = wire_field(default=None)
    storage_error: str | None = wire_field(default=None)
    """The error of the storage, if training resumes from a state in memory without the storage."""

    @property
    def location(self) -> Location | None:
        return None if self.path is None else location_of(self.path)

    @property
    def may_lack_evaluation(self) -> bool:
        """Whether the evaluation that is due after the step may be missing: at a stop, and in a state in memory."""
        in_memory = self.source in (ResumeSource.MEMORY, ResumeSource.SURVIVORS)
        return in_memory or (self.reason is not None and self.reason.is_urgent)

    @property
    def warnings(self) -> list[str]:
        """A message for each checkpoint that is skipped."""
        return [f"checkpoint {each.path} is skipped: {each.reason}" for each in self.skipped]

    def event(self) -> Resumed:
        return Resumed(step=self.step, committed_step=self.committed_step, path=self.path, skipped=self.skipped, source=self.source)


def agree_on_resume_point(ranks: Ranks, choose: Callable[[], ResumePoint]) -> ResumePoint:
    """Calls `choose` on rank 0, and returns the result on every rank."""
    return decode(ResumePoint, agree(ranks, lambda: encode(choose())))


def of_selection(selection: Selection) -> ResumePoint:
    """The resume point of a checkpoint."""
    return ResumePoint(
        source=ResumeSource.STORAGE if selection.commit else None,
        step=selection.step,
        path=str(selection.commit.path) if selection.commit else None,
        committed_step=selection.newest,
        skipped=tuple(Skipped(path=str(path), reason=reason) for path, reason in selection.skipped[:MAX_SKIPPED]),
        reason=selection.manifest.reason if selection.manifest else None,
    )


def choose_and_register(spec: CheckpointSpec, store: Store, memory: ResumePoint | None, identity: Mapping[str, Any]) -> ResumePoint:
    """Chooses the newest checkpoint, or the state in memory if that is as new or the storage is not available. Registers the choice.

    Raises BadConfiguration for a checkpoint of another `identity`, and StorageUnavailable if there is no state in memory either.
    """
    try:
        if memory:
            committed = newest_step(spec, store.fence)  # verifies no files, which takes time
            if committed is None or committed <= memory.step:
                return _register_memory(store, memory, committed)
        selection = select(spec, store.fence)
        if selection.manifest and selection.commit:
            check_identity(selection.manifest, identity, selection.commit.path)
        if memory and memory.step > selection.step:
            return _register_memory(store, memory, selection.newest)
        store.register(selection)
        return of_selection(selection)
    except StorageUnavailable as error:
        if memory is None:
            raise
        return replace(memory, storage_error=str(error))


def _register_memory(store: Store, memory: ResumePoint, committed_step: int | None) -> ResumePoint:
    store.register_step(memory.step)
    return replace(memory, committed_step=committed_step)
