"""An error in a function of another package's strategy is reported as a fault of that package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from muster.admission import validate
from muster.admission.validate import problems
from muster.api.job import TrainingJob
from muster.api.problems import InvalidJobError, Problem
from muster.control.admission import Admission
from muster.render.addresses import ClusterAddresses
from muster.render.defaults import JobDefaults
from muster.render.images import Images
from muster.render.manifests import render
from muster.strategies.base import ExtraObject, RoleRule, Strategy
from muster.strategies.faults import StrategyFaultError, guarded
from muster.strategies.registry import STRATEGIES
from muster_contract.strategy import Framework, StrategyRuntime

FRAMEWORK = Framework("Own", package="own", process_environment={"OWN_RANK": "$(MUSTER_RANK)"})
OWN = Strategy(
    runtime=StrategyRuntime("Own", FRAMEWORK),
    roles={"node": RoleRule(decides_success=True)},
    elastic=True,
    data_parallel=lambda spec: 1,
)
IMAGES = Images({"Own": "own:1"}, supervisor="operator:1")
Install = Callable[..., None]


def broken(*arguments: object) -> Any:
    raise KeyError("hosts\nfile")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs OWN with changed parts, as a package would."""

    def installed(**parts: Any) -> None:
        strategies = MappingProxyType({**STRATEGIES, "Own": guarded(replace(OWN, **parts), "own-package")})
        for module in ("strategies.registry", "admission.validate", "admission.job_policy", "control.admission"):
            monkeypatch.setattr(f"muster.{module}.STRATEGIES", strategies)
        validate.rules_of_strategy.cache_clear()

    yield installed
    validate.rules_of_strategy.cache_clear()


def job_of(**spec: Any) -> TrainingJob:
    return TrainingJob.model_validate({"metadata": {"name": "job"}, "spec": {"strategy": "Own", "trainer": {"task": "digits"}, **spec}})


def rendered(job: TrainingJob) -> None:
    render(job, attempt=0, addresses=ClusterAddresses("job", "default"), images=IMAGES)


def admitted() -> list[Problem]:
    obj = {"metadata": {"name": "job", "uid": "1"}, "spec": {"strategy": "Own", "trainer": {"task": "digits"}}}
    return list(Admission(IMAGES, JobDefaults()).admit(obj).problems)


def generator(*arguments: object) -> Iterator[Problem]:
    yield broken()


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"environment": broken}, "environment failed: KeyError: 'hosts"),
    ({"environment": lambda *_: None}, "environment failed: TypeError: it returned None, and must return a mapping"),
    ({"environment": lambda *_: {"A": 1}}, "must return a mapping of names to texts"),
    ({"placement": broken}, "placement failed: KeyError"),
    ({"placement": lambda *_: {}}, "must return a Placement"),
    ({"is_synchronous": broken}, "is_synchronous failed: KeyError"),
    ({"data_parallel": broken}, "data_parallel failed: KeyError"),
    ({"data_parallel": lambda _: 0}, "must return a number of devices, at least 1"),
    ({"checks": (broken,)}, "checks[0] failed: KeyError"),
    ({"checks": (generator,)}, "checks[0] failed: KeyError"),
    ({"checks": (lambda *_: ["bad"],)}, "checks[0] failed: TypeError: it returned ['bad'], and must return problems"),
    ({"objects": broken}, "objects failed: KeyError"),
    ({"objects": lambda *_: [ExtraObject("b-c", dict)]}, "the name of object 'b-c' must be at most 15"),
    (
        {"objects": lambda *_: [ExtraObject("keys", dict, roles=frozenset({"nobody"}))]},
        "keys is for the roles nobody",
    ),
    ({"objects": lambda *_: [ExtraObject("keys", broken)]}, "data of object keys failed: KeyError"),
]


@pytest.mark.parametrize(("parts", "reason"), FAULTS, ids=[reason for _, reason in FAULTS])
def test_a_job_of_a_faulty_strategy_is_refused_with_package_and_function(parts: dict[str, Any], reason: str, install: Install) -> None:
    install(**parts)
    [problem] = admitted()
    assert problem.field == "spec.strategy"
    assert problem.message.startswith("strategy Own (package own-package): ")
    assert reason in problem.message
    assert problem.message.endswith("this is a fault of that package")
    assert "\n" not in problem.message


def test_the_line_of_the_function_is_named(install: Install) -> None:
    install(environment=broken)
    with pytest.raises(StrategyFaultError, match=r"test_faults\.py:\d+\); this is a fault"):
        rendered(job_of())


def test_problems_that_the_functions_raise_are_not_changed(install: Install) -> None:
    def refuse(*_: object) -> Any:
        raise InvalidJobError([Problem("spec.roles", "write 2")])

    install(environment=refuse)
    assert admitted() == [Problem("spec.roles", "write 2")]


def test_a_valid_strategy_of_a_package_works(install: Install) -> None:
    install()
    assert problems(job_of()) == []
    assert admitted() == []
    rendered(job_of())


def test_an_elastic_strategy_may_have_a_role_of_another_name_than_worker(install: Install) -> None:
    install()
    elastic = {"elastic": {"minReplicas": 2, "maxReplicas": 4}, "batch": {"globalSize": 64}}
    assert problems(job_of(**elastic, roles={"node": {"replicas": 3}})) == []
    message = "must be from elastic.minReplicas to elastic.maxReplicas"
    assert problems(job_of(**elastic)) == [Problem("spec.roles.node.replicas", message)]
    assert problems(job_of(**elastic, roles={"node": {"replicas": 5}})) == [Problem("spec.roles.node.replicas", f"{message}, not 5")]


def test_variables_of_each_process_may_not_be_set_by_the_user(install: Install) -> None:
    install()
    containers = [{"name": "trainer", "env": [{"name": "OTHER", "value": "1"}, {"name": "OWN_RANK", "value": "1"}]}]
    job = job_of(roles={"node": {"template": {"spec": {"containers": containers}}}})
    message = "must be the name of a variable that Muster does not set, not 'OWN_RANK'"
    assert problems(job) == [Problem("spec.roles.node.template.spec.containers[0].env[1].name", message)]
    other = job.model_copy(update={"spec": job.spec.model_copy(update={"strategy": "DDP", "roles": {"worker": job.spec.roles["node"]}})})
    assert problems(other) == []
