"""The state after the last step, which a rank may save when its peers are lost in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from muster_trainer.pytorch.parallel import restore_buffers


class FinishedState:
    """Passes change the buffers of the model, so they are copied before. An update changes everything. If it fails within, for example in
    an optimizer of the user, the state is that of no step."""

    def __init__(self, module: nn.Module, *, is_kept: bool) -> None:
        self._module, self._is_kept = module, is_kept
        self._copies: list[torch.Tensor] = []
        self._is_changing = False

    def copy(self) -> None:
        """Call it before the passes of a step."""
        if self._is_kept:
            self._copies = [buffer.clone() for buffer in self._module.buffers()]

    def drop(self) -> None:
        """Forgets the copies: the passes count."""
        self._copies = []

    @contextmanager
    def updating(self) -> Iterator[None]:
        self._is_changing = True
        yield
        self._is_changing = False

    def restore(self) -> bool:
        """Makes the state that after the last step. Returns whether this rank could."""
        restore_buffers(self._module, self._copies)
        return self._is_kept and not self._is_changing
