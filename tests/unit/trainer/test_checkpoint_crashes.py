"""Two attempts save in any order, and crash anywhere: no bad checkpoint is chosen, and no good one is lost."""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster_contract.errors import PeerLost
from muster_contract.events import CommitReason
from muster_contract.trainer_spec import CheckpointSpec
from muster_trainer.checkpoint import Fence, Manifest, Store, files, select

CREATED = datetime(2026, 11, 21, 11, 16, 14, tzinfo=UTC)
STEP = 10


class CrashError(Exception):
    """The process ends in the middle of a file operation."""


class Attempts(RuleBasedStateMachine):
    """The current attempt and the one before, which may still write. Beside the files stands a model of what is good:
    (step, fence) -> the bytes that a finished commit must hold, less what a newer attempt made void or a test damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="muster-crashes-"))
        self.good: dict[tuple[int, Fence], bytes] = {}
        self.store: Store | None = None
        self.stale: Store | None = None
        self.step = self.stale_step = 0
        self.operations_left: int | None = None
        self.patch = pytest.MonkeyPatch()
        for name in ("write_file", "remove_file", "remove_tree", "make_directory", "sync_file"):
            self.patch.setattr(files, name, self._crashing(name, getattr(files, name)))
        self._begin_attempt(0)

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.directory)

    def _crashing(self, name, operation):  # type: ignore[no-untyped-def]
        def perform(path: Path, *content: bytes) -> None:
            if self.operations_left is not None:
                if self.operations_left == 0:
                    if name == "write_file":
                        path.write_bytes(content[0][: len(content[0]) // 2])
                    elif name == "remove_tree":
                        for first in sorted(path.iterdir())[:1]:
                            first.unlink(missing_ok=True)
                    raise CrashError
                self.operations_left -= 1
            operation(path, *content)

        return perform

    def _begin_attempt(self, number: int) -> None:
        fence = Fence(CREATED, number)
        selection = select(CheckpointSpec(str(self.directory)), fence)
        self.stale, self.stale_step = self.store, self.step
        self.store, self.step = Store(self.directory, fence, keep=2), selection.step
        self.number = number
        self.store.register(selection)
        self.good = {(step, by): held for (step, by), held in self.good.items() if step <= selection.step}

    def _save(self, store: Store, step: int) -> None:
        content = f"{step} of {store.fence}".encode() * 5
        path = store.begin(step)
        (path / "weights").write_bytes(content)
        listing = store.flush(path, ["weights"], path)
        manifest = Manifest(step, 0, 0, step, 1, "DDP", store.fence.attempt, {}, {}, CommitReason.PERIODIC, "now", listing)
        store.commit(path, manifest)
        self.good[step, store.fence] = content
        try:
            store.retain()
        finally:
            there = {(at, by) for at, by in self.good if (self.directory / f"step-{at:08d}-{by}" / "COMMITTED").exists()}
            assert set(sorted(self.good)[-2:]) <= there, "one of the newest two that verify was removed"
            self.good = {key: self.good[key] for key in there}

    @rule()
    def the_current_attempt_commits(self) -> None:
        assert self.store is not None
        self.step += STEP
        self._save(self.store, self.step)

    @rule(operations=st.integers(0, 9))
    def the_current_attempt_crashes_while_it_commits_and_the_next_begins(self, operations: int) -> None:
        self.operations_left = operations
        try:
            self.the_current_attempt_commits()
        except CrashError:
            pass
        finally:
            self.operations_left = None
        self._begin_attempt(self.number + 1)

    @rule(operations=st.integers(0, 3))
    def the_next_attempt_crashes_while_it_begins(self, operations: int) -> None:
        self.operations_left = operations
        try:
            self._begin_attempt(self.number + 1)
        except CrashError:
            pass
        finally:
            self.operations_left = None
        self._begin_attempt(self.number + 1)

    @precondition(lambda self: self.stale is not None)
    @rule(operations=st.integers(0, 9))
    def the_attempt_before_tries_to_commit_late(self, operations: int) -> None:
        assert self.stale is not None
        with pytest.raises(PeerLost):
            self._save(self.stale, self.stale_step + STEP)

    @precondition(lambda self: self.stale is not None)
    @rule()
    def the_attempt_before_commits_despite_its_lower_fence(self) -> None:
        """It looked for a newer fence just before that one was registered: a race that no check can close."""
        assert self.stale is not None
        step = self.stale_step + STEP
        unchecked = pytest.MonkeyPatch()
        unchecked.setattr(Store, "_check_fence", lambda _: None)
        try:
            good = dict(self.good)
            self._save(self.stale, step)
            assert self.store is not None
            if not self._void(step, self.stale.fence):
                good[step, self.stale.fence] = self.good[step, self.stale.fence]
            self.good = good
        finally:
            unchecked.undo()

    def _void(self, step: int, fence: Fence) -> bool:
        """Void by definition, from the registrations alone."""
        for path in (self.directory / "attempts").glob("*.json"):
            other = Fence.parse(path.stem)
            try:
                resumed = json.loads(path.read_text())["resumedStep"]
            except ValueError:
                continue
            if other is not None and other > fence and resumed < step:
                return True
        return False

    @precondition(lambda self: len(self.good) >= 2)
    @rule(cut=st.booleans(), resumes=st.booleans())
    def the_newest_checkpoint_rots(self, cut: bool, resumes: bool) -> None:
        """The attempt that wrote it may continue."""
        newest = max(self.good)
        path = self.directory / f"step-{newest[0]:08d}-{newest[1]}" / "weights"
        if not path.exists():
            return
        content = path.read_bytes()
        path.write_bytes(content[:-1] if cut else bytes([content[0] ^ 1]) + content[1:])
        del self.good[newest]
        if resumes:
            self._begin_attempt(self.number + 1)

    @invariant()
    def the_newest_good_checkpoint_is_chosen_whole(self) -> None:
        selection = select(CheckpointSpec(str(self.directory)), Fence(CREATED, self.number + 1))
        if not self.good:
            assert selection.commit is None
            return
        newest = max(self.good)
        assert selection.commit is not None, f"{newest} was lost"
        assert (selection.commit.step, selection.commit.fence) == newest
        assert (selection.commit.path / "weights").read_bytes() == self.good[newest]


Attempts.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
test_any_order_of_saves_and_crashes_leaves_the_newest_good_checkpoint = Attempts.TestCase
