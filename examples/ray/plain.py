"""A plain Ray program: tasks that run on all workers."""

import os
import socket

import ray

import muster_training


@ray.remote
def square(number: int) -> tuple[int, str]:
    return number**2, socket.gethostname()


ray.init()
total = 0
STEPS = int(os.environ.get("STEPS", "10"))
for step in range(1, STEPS + 1):
    total += sum(value for value, _ in ray.get([square.remote(number) for number in range(step)]))
    muster_training.report(step=step, total=STEPS, loss=1.0 / step)
print(f"the squares add up to {total}")
