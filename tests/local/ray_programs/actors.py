"""Tasks, actors and objects of Ray, without Ray Train."""

import asyncio

import ray


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.total = 0

    def add(self, number):
        self.total += number
        return self.total


@ray.remote(num_cpus=0)
class Waiter:
    async def wait(self, number):
        await asyncio.sleep(0.01)
        return number


@ray.remote(num_cpus=1)
def add_square(number, counter):
    return ray.get(counter.add.remote(number**2))


@ray.remote
def size(data):
    return len(data)


ray.init()
counter, waiter = Counter.options(name="counter").remote(), Waiter.options(max_concurrency=10).remote()  # type: ignore[attr-defined]  # mypy knows no decorators of classes
largest = max(ray.get([add_square.remote(number, counter) for number in range(20)]))
waited = sum(ray.get([waiter.wait.remote(number) for number in range(20)]))
named = ray.get(ray.get_actor("counter").add.remote(0))
print("squares", largest, "waited", waited, "named", named, "bytes", ray.get(size.remote(ray.put(bytes(5_000_000)))), flush=True)
