"""Which losses and metrics PyTorch ranks and micro-batches may compute in parts, and that the parts make up the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from muster_contract.config import COMMON_KEYS
from muster_contract.errors import UserError
from muster_trainer import tasks
from muster_trainer.pytorch.objective import Objective
from muster_trainer.tasks.averages import WEIGHT, averages, samples_checked
from muster_trainer.tasks.config import read_config
from muster_trainer.tasks.module import Task

pytestmark = pytest.mark.torch
CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 5.0])
TOKENS = 6
SAMPLES = 24
Loss = Callable[[Any, Any], Any]


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(SAMPLES, TOKENS, 3, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def padded_tokens() -> torch.Tensor:
    """Sequences of 1 to 6 classes, filled up with -100, which cross_entropy ignores."""
    numbers = np.random.default_rng(0)
    lengths = numbers.integers(1, TOKENS + 1, SAMPLES)
    classes = numbers.integers(0, 3, (SAMPLES, TOKENS))
    return torch.as_tensor(np.where(np.arange(TOKENS) < lengths[:, None], classes, -100))


def of_tokens(reduction: str, weight: torch.Tensor | None = None) -> Loss:
    return lambda outputs, batch: functional.cross_entropy(outputs.transpose(1, 2), batch[1], weight=weight, reduction=reduction)


def of_first(reduction: str, weight: torch.Tensor | None = None) -> Loss:
    """The loss of the first token, which no sequence lacks."""
    return lambda outputs, batch: functional.cross_entropy(outputs[:, 0], batch[1][:, 0], weight=weight, reduction=reduction)


def tokens_and_counts(outputs: Any, batch: Any) -> Any:
    return of_tokens("none")(outputs, batch).sum(1), (batch[1] != -100).sum(1)


def weighted_and_weights(outputs: Any, batch: Any) -> Any:
    return of_first("none", CLASS_WEIGHTS)(outputs, batch), CLASS_WEIGHTS[batch[1][:, 0]]


ACCEPTED: dict[str, tuple[Loss, Loss]] = {
    # the loss of a module, and the scalar that it means for the whole batch
    "mean": (of_first("mean"), of_first("mean")),
    "a value per sample": (of_first("none"), of_first("mean")),
    "weighted values divided by the samples": (
        of_first("none", CLASS_WEIGHTS),
        lambda outputs, batch: of_first("none", CLASS_WEIGHTS)(outputs, batch).mean(),
    ),
    "class weights as a pair": (weighted_and_weights, of_first("mean", CLASS_WEIGHTS)),
    "class weights as a pair of sums": (
        lambda outputs, batch: tuple(one.sum() for one in weighted_and_weights(outputs, batch)),
        of_first("mean", CLASS_WEIGHTS),
    ),
    "ignore_index as a pair": (tokens_and_counts, of_tokens("mean")),
}
REFUSED: dict[str, Loss] = {
    "sum": of_first("sum"),
    "mean with class weights": of_first("mean", CLASS_WEIGHTS),
    "mean with ignore_index": of_tokens("mean"),
    "sum over a fixed size": lambda outputs, batch: of_first("sum")(outputs, batch) / 24,
    "values divided by the mask of the batch": lambda outputs, batch: (
        of_tokens("none")(outputs, batch).sum(1) / (batch[1] != -100).sum() * len(outputs)
    ),
    "root of a mean": lambda outputs, batch: of_first("mean")(outputs, batch).sqrt(),
    "samples compared with each other": lambda outputs, _: functional.cross_entropy(
        outputs[:, 0] @ outputs[:, 0].T, torch.arange(len(outputs))
    ),
}


def objective(loss: Loss, metrics: Loss = lambda outputs, batch: {}, **config: Any) -> Objective:
    task = Task(
        title="module m",
        config=read_config(config, COMMON_KEYS, others_allowed=True),
        train=[0],
        test=[0],
        build_model=lambda _: None,
        loss=loss,
        metrics=metrics,
        optimizer=None,
        identity={},
    )
    return Objective(task, torch.device("cpu"))


def in_parts(made: Objective, outputs: torch.Tensor, targets: torch.Tensor, *, size: int) -> torch.Tensor:
    """The loss of a step that is computed in parts of `size` samples."""
    sums = []
    for part in (slice(first, first + size) for first in range(0, SAMPLES, size)):
        own = outputs[part], (outputs[part], targets[part])
        weights = np.ones(len(own[0]), dtype=np.float32)
        sums.append(torch.stack(made.loss_sum(*own, weights, of=SAMPLES)))
    total, weight = torch.stack(sums).sum(0)
    return total / weight


@pytest.mark.parametrize("size", [10, 1])
@pytest.mark.parametrize("form", ACCEPTED)
def test_the_gradient_of_unequal_parts_is_that_of_the_whole_batch(form: str, size: int) -> None:
    loss, whole = ACCEPTED[form]
    targets = padded_tokens()
    one, other = logits(), logits()
    whole(one, (None, targets)).backward()
    in_parts(objective(loss), other, targets, size=size).backward()
    torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("size", [10, 1])
@pytest.mark.parametrize("form", REFUSED)
def test_a_loss_that_cannot_be_computed_in_parts_is_refused_with_what_to_write(form: str, size: int) -> None:
    with pytest.raises(UserError, match=r"module m: loss is not the mean.*Return the value of each sample alone.*or the pair"):
        in_parts(objective(REFUSED[form]), logits(), padded_tokens(), size=size)


@pytest.mark.parametrize(("size", "samples"), [(1, 8), (2**21, 8), (2**22, 4), (2**30, 3)])
def test_fewer_samples_with_large_outputs_are_checked(size: int, samples: int) -> None:
    assert samples_checked(size) == samples


@pytest.mark.parametrize("form", REFUSED)
def test_a_check_of_few_samples_refuses_the_same_losses(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.averages, "ELEMENTS_CHECKED", 1)
    with pytest.raises(UserError, match=r"module m: loss is not the mean"):
        in_parts(objective(REFUSED[form]), logits(), padded_tokens(), size=10)


@pytest.mark.parametrize("form", REFUSED)
def test_a_batch_that_is_computed_as_a_whole_may_have_any_loss(form: str) -> None:
    in_parts(objective(REFUSED[form]), logits(), padded_tokens(), size=SAMPLES)


def test_a_mean_in_16_bits_is_no_sum() -> None:
    half = objective(lambda outputs, batch: of_first("mean")(outputs.bfloat16(), batch), precision="BFloat16")
    in_parts(half, logits(), padded_tokens(), size=10)


def test_a_loss_with_random_numbers_is_accepted_and_the_check_draws_none() -> None:
    def noisy(outputs: Any, batch: Any) -> Any:
        return (of_first("none")(outputs, batch) * torch.rand(len(outputs))).mean()

    torch.manual_seed(1)
    checked = in_parts(objective(noisy), logits(), padded_tokens(), size=10)
    torch.manual_seed(1)
    plain = [
        noisy(logits()[part], (None, padded_tokens()[part])) * len(logits()[part]) for part in (slice(0, 10), slice(10, 20), slice(20, 24))
    ]
    assert checked.item() == pytest.approx(sum(plain).item() / SAMPLES, rel=1e-6)  # type: ignore[union-attr]


def test_a_metric_that_is_no_mean_is_refused_by_its_name() -> None:
    made = objective(of_first("mean"), lambda outputs, batch: {"largest": outputs.max()})
    with pytest.raises(UserError, match=r"metrics returns a largest that is not the mean"):
        in_parts(made, logits(), padded_tokens(), size=10)


def test_outputs_without_rows_are_refused() -> None:
    made = objective(lambda outputs, batch: outputs)
    with pytest.raises(UserError, match="no row per sample"):
        made.loss_sum(logits().sum(), (logits(), padded_tokens()), np.ones(SAMPLES, dtype=np.float32), of=2 * SAMPLES)


def test_metrics_with_weights_are_averaged_by_the_weights_of_all_batches() -> None:
    made = objective(tokens_and_counts, lambda outputs, batch: {"per_token": tokens_and_counts(outputs, batch)})
    outputs, targets = logits(), padded_tokens()
    sums: dict[str, float] = {}
    for part in (slice(0, 5), slice(5, SAMPLES)):
        rows = np.ones(len(outputs[part]), dtype=np.float32)
        for name, value in made.metric_sums(outputs[part], (outputs[part], targets[part]), rows).items():
            sums[name] = sums.get(name, 0.0) + value
    assert sums.keys() == {"loss", f"loss{WEIGHT}", "per_token", f"per_token{WEIGHT}"}
    whole = of_tokens("mean")(outputs, (None, targets)).item()
    assert averages(sums, SAMPLES) == pytest.approx({"loss": whole, "per_token": whole})
