"""Names and amounts of compute resources."""

import pytest

from muster.admission.resources import resource_problems
from tests.support.texts import absent

NAMES = [
    ("gpu", "nvidia.com/gpu or amd.com/gpu"),
    ("GPUs", "nvidia.com/gpu or amd.com/gpu"),
    ("cpus", "write cpu"),
    ("Memory", "write memory"),
    ("ram", "write memory"),
    ("tpu", "write google.com/tpu"),
    ("ephemeral_storage", "write ephemeral-storage"),
    ("nvidia.com/gpus", "write nvidia.com/gpu"),
    ("nvidia/gpu", "write nvidia.com/gpu"),
    ("nvidia.com.gpu", "write nvidia.com/gpu"),
    ("nvida.com/gpu", "write nvidia.com/gpu"),
    ("colour", "domain/name, such as nvidia.com/gpu"),
]


@pytest.mark.parametrize("part", ["limits", "requests"])
@pytest.mark.parametrize(("name", "fact"), NAMES)
def test_a_name_that_is_no_resource_is_refused_with_the_one_that_was_meant(name: str, fact: str, part: str) -> None:
    [problem] = resource_problems(**{"limits": {}, "requests": {}, part: {name: 1}}, path="resources", below={})
    assert problem.field.startswith(f"resources.{part}")
    assert problem.field.rstrip("]").endswith(name)
    assert absent(problem.message, fact) == []


def test_names_of_kubernetes_and_of_device_plugins_are_accepted() -> None:
    names = ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/vgpu", "rdma/hca", "hugepages-2Mi", "cpu"]
    assert list(resource_problems(dict.fromkeys(names, 1), {}, "resources", below={})) == []


AMOUNTS = [
    ({"memory": "16m"}, {}, {}, "limits.memory", "16Mi"),
    ({"memory": 512}, {}, {}, "limits.memory", "512Mi"),
    ({"cpu": -1}, {}, {}, "limits.cpu", "negative"),
    ({}, {"nvidia.com/gpu": 1}, {}, "requests[nvidia.com/gpu]", "limits: {nvidia.com/gpu: 1}"),
    ({}, {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 2}, "requests[nvidia.com/gpu]", "equal the limit, 2"),
    ({"memory": "1Gi"}, {"memory": "2Gi"}, {}, "requests.memory", "not be more than the limit, 1Gi"),
    ({}, {"cpu": 2}, {"cpu": "500m"}, "requests.cpu", "500m"),
]


@pytest.mark.parametrize(("limits", "requests", "below", "field", "fact"), AMOUNTS)
def test_an_amount_that_kubernetes_refuses_is_refused(limits: dict, requests: dict, below: dict, field: str, fact: str) -> None:
    [problem] = resource_problems(limits, requests, "resources", below=below)
    assert (problem.field, absent(problem.message, fact)) == (f"resources.{field}", [])


def test_amounts_that_kubernetes_takes_are_accepted() -> None:
    limits, requests = {"memory": "16Gi", "cpu": "500m", "nvidia.com/gpu": 4}, {"memory": "8Gi", "cpu": 0.5, "nvidia.com/gpu": "4"}
    assert list(resource_problems(limits, requests, "resources", below={})) == []
    assert list(resource_problems({}, {"cpu": 4, "nvidia.com/gpu": 1}, "resources", below={"nvidia.com/gpu": "1"})) == []
