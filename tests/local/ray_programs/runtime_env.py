"""Variables and files of the program for its tasks, by `runtime_env`."""

import os
from pathlib import Path

import ray

Path("work").mkdir(exist_ok=True)
Path("work/beside.py").write_text("NAME = 'from the folder'\n")
ray.init(address="auto", runtime_env={"env_vars": {"COLOUR": "blue"}, "working_dir": "work"})


@ray.remote
def of_program():
    import beside  # type: ignore[import-not-found]

    return os.environ["COLOUR"], beside.NAME


@ray.remote(runtime_env={"env_vars": {"COLOUR": "red"}})
def of_task():
    return os.environ["COLOUR"]


print("tasks have", *ray.get(of_program.remote()), ray.get(of_task.remote()), flush=True)
