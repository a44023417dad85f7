"""A function becomes a program that needs nothing of the program that defined it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.client.code import MOST_BYTES
from muster.client.function import PROGRAM, job_of, program_of

OUTSIDE = 3
total: float


def fit(path: Path, sizes: list[int], rate: float = 0.5) -> Path:
    import json
    from pathlib import Path

    global total

    class Model:
        scale = 2

        def value(self) -> float:
            return sum(size * self.scale for size in sizes) * rate

    total = Model().value()
    Path(path).write_text(json.dumps({"name": __name__, "total": total}))
    return Path(path)


def uses_a_module() -> str:
    return json.dumps([helper(), OUTSIDE])


def uses_a_name_in_a_default(value: int = OUTSIDE) -> int:
    return value


def helper() -> int:
    return 1


def with_a_variable_of_its_surroundings() -> Callable[[], int]:
    inner = 3

    def closed() -> int:
        return inner

    return closed


async def coroutine() -> None: ...


def test_the_program_calls_the_function_with_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / PROGRAM
    file.write_text(program_of(fit, {"path": str(tmp_path / "out.json"), "sizes": [1, 2]}))
    done = subprocess.run([sys.executable, "-I", str(file)], cwd="/", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "out.json").read_text()) == {"name": "__main__", "total": 3.0}


@pytest.mark.parametrize(
    ("function", "arguments", "sentence"),
    [
        (uses_a_module, {}, "uses OUTSIDE, helper, json, which only this program has: import or define them in the function"),
        (uses_a_name_in_a_default, {}, "uses OUTSIDE, which only this program has: import or define it"),
        (with_a_variable_of_its_surroundings(), {}, "closed uses inner"),
        (fit, {"path": "x"}, "arguments: fit cannot be called with them: missing a required argument: 'sizes'"),
        (fit, {"path": "x", "sizes": [], "size": 1}, "got an unexpected keyword argument 'size'"),
        (fit, {"path": Path("x"), "sizes": (1, 2)}, "arguments: path, sizes must have plain values"),
        (fit, {"path": "x", "sizes": [], "rate": float("nan")}, "arguments: rate must have plain values"),
        (fit, {"path": "x" * MOST_BYTES, "sizes": []}, "put large values into a file on a volume, and pass its path"),
        (lambda: 1, {}, "write a function with def"),
        (coroutine, {}, "write a function with def"),
        (print, {}, "write a function with def"),
        (eval("exec('def unread(): pass', names := {}) or names['unread']"), {}, "the source of unread cannot be read"),
    ],
)
def test_a_function_that_cannot_run_elsewhere_is_refused(
    function: Callable[..., object], arguments: Mapping[str, Any], sentence: str
) -> None:
    with pytest.raises(muster.RefusedError) as refused:
        program_of(function, arguments)
    assert sentence in str(refused.value)


def test_the_job_has_the_name_of_the_function_and_the_fields_of_the_spec() -> None:
    spec = {"strategy": "DDP", "trainer": muster.Trainer(preload=["torch.nn"]), "labels": {"team": "ml"}}
    job, files = job_of(fit, None, {"path": "x", "sizes": []}, spec)
    assert (job.metadata.name, job.metadata.labels) == ("fit", {"team": "ml"})
    assert (job.spec.trainer.script, job.spec.trainer.preload) == (PROGRAM, ["torch.nn"])
    assert list(files) == [PROGRAM]
    assert job_of(fit, "other", {"path": "x", "sizes": []}, spec)[0].metadata.name == "other"
    assert job_of(fit, None, {"path": "x", "sizes": []}, {**spec, "trainer": {"preload": ["torch.nn"]}})[0].spec == job.spec
    with pytest.raises(muster.InvalidJobError, match=r"spec\.trainer"):
        job_of(fit, None, {"path": "x", "sizes": []}, {**spec, "trainer": muster.Trainer(task="digits")})
