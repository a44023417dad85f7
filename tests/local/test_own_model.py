"""The modules on the page about own models train as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.bare_worlds import trainer, world

PAGE = (Path(__file__).parents[2] / "docs" / "tasks" / "own-model.md").read_text()


@pytest.mark.parametrize(
    ("module", "strategy"),
    [
        pytest.param("line_torch", "DDP", marks=pytest.mark.torch),
        pytest.param("line_keras", "MultiWorkerMirrored", marks=pytest.mark.tensorflow),
        pytest.param("line_jax", "JAX", marks=pytest.mark.jax),
    ],
)
def test_the_module_on_the_page_learns(module: str, strategy: str, tmp_path: Path) -> None:
    [code] = re.findall(rf"```python\n(# {module}\.py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / f"{module}.py").write_text(code)
    document = trainer(None, module=module, config={"epochs": 5, "learningRate": 0.02, "width": 32}, batch={"globalSize": 32})
    with world(strategy, document, PYTHONPATH=str(tmp_path)) as running:
        assert running.finish() == [0, 0], running.story()
    losses = running.losses()
    assert len(losses) == 40
    assert float.fromhex(losses[40]) < float.fromhex(losses[1]) / 4
    assert running.events("evaluation")
