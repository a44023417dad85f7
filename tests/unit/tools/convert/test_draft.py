"""`muster init`: what it finds in a program, and the job file that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.admission.read import read_job
from muster.cli.main import cli
from tests.support.texts import absent

PROGRAMS = {
    "import torch.distributed as dist\ndist.init_process_group()": ("DDP", 2, "init_process_group"),
    "import os\nrank = os.environ['LOCAL_RANK']": ("DDP", 2, "LOCAL_RANK"),
    "from torch.distributed.fsdp import fully_shard": ("FSDP", 2, "fully_shard"),
    "from transformers import Trainer": ("DDP", 2, "muster_training.transformers_callback()"),
    "import pytorch_lightning as pl": ("DDP", 2, "muster_training.lightning_callback()"),
    "import json, os\njson.loads(os.environ['TF_CONFIG'])": ("MultiWorkerMirrored", 2, "TF_CONFIG"),
    "import tensorflow as tf\ntf.distribute.ParameterServerStrategy(None)": ("ParameterServer", 2, "ps: {}"),
    "import keras": ("OneDevice", 1, "muster_training.keras_callback()"),
    "import jax": ("JAX", 2, "imports jax"),
    "import torch": ("DDP", 1, "would train alone"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_gets_the_strategy_that_it_fits(program: str, tmp_path: Path) -> None:
    strategy, workers, words = PROGRAMS[program]
    (tmp_path / "My train.py").write_text(program)
    written = tmp_path / "job.yaml"
    ended = CliRunner().invoke(cli, ["init", "--from", str(tmp_path / "My train.py"), "-f", str(written)])
    assert ended.exit_code == 0, ended.output
    job = read_job(written)
    assert (job.metadata.name, job.spec.strategy, job.spec.roles["worker"].replicas) == ("my-train", strategy, workers)
    assert absent(written.read_text(), words, "gracePeriodSeconds") == []


def test_flags_decide_and_nothing_is_overwritten(tmp_path: Path) -> None:
    written = tmp_path / "job.yaml"
    arguments = ["init", "--name", "mine", "--strategy", "FSDP", "--workers", "3", "--file", str(written)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    job = read_job(written)
    assert (job.metadata.name, job.spec.strategy, job.spec.trainer.task, job.spec.roles["worker"].replicas) == ("mine", "FSDP", "digits", 3)
    again = CliRunner().invoke(cli, arguments)
    assert (again.exit_code, absent(again.output, "job.yaml exists", "--file")) == (11, [])


@pytest.mark.parametrize("content", [b"def broken(:", b"\xff\xfe", b"\0"])
def test_a_file_that_is_no_program_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(content)
    ended = CliRunner().invoke(cli, ["init", "--from", str(tmp_path / "train.py"), "-f", "-"])
    assert ended.exception is not None
    assert absent(f"{ended.output}{ended.exception}", "train.py", "is not a Python program") == []
