"""Jobs that choose capacity classes: what is refused, and the sentence for it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.acceptance.pod_checks import pod_problems
from muster.admission.validate import problems, remarks
from muster.api.capacity import DEFAULT_CLASSES
from muster.api.job import TrainingJob
from muster.render.defaults import JobDefaults
from muster.render.images import default_images
from tests.support.texts import absent

MIX = {"roles": {"worker": ["spot", "on-demand"]}}


def job(capacity: Any, **spec: Any) -> TrainingJob:
    scheduling = {"capacity": capacity, **spec.pop("scheduling", {})}
    whole = {"strategy": "DDP", "trainer": {"task": "digits"}, "roles": {"worker": {"replicas": 4}}, "scheduling": scheduling, **spec}
    return TrainingJob.model_validate({"metadata": {"name": "digits"}, "spec": whole})


@pytest.mark.parametrize(
    "accepted",
    [
        job(MIX),
        job({"classes": ["own-class"]}),
        job({**MIX, "spares": ["on-demand"]}, recovery={"spares": 2}),
        job({**MIX, "limits": {"on-demand": 1}}),
        job({**MIX, "limits": {"spot": 1, "on-demand": 4}}),
        job({**MIX, "limits": {"spot": 1, "on-demand": 3}}),
        job(MIX, elastic={"minReplicas": 1, "maxReplicas": 4}, batch={"globalSize": 8}),
        job({"classes": ["spot"], "fallbackAfterSeconds": 5000}),
    ],
)
def test_a_mix_is_accepted(accepted: TrainingJob) -> None:
    assert problems(accepted) == []


@pytest.mark.parametrize(
    ("refused", "field", "words"),
    [
        (job({}), "", "names no class"),
        (job({"roles": {"chief": ["spot"]}}), ".roles", '"chief"'),
        (job({"classes": ["spot", "spot"]}), ".classes", "spot more than once"),
        (job(MIX, scheduling={"queue": "team-a"}), "", "flavors of the queue"),
        (job({**MIX, "spares": ["on-demand"]}), ".spares", "recovery.spares"),
        (job({**MIX, "limits": {"reserved": 1}}), ".limits.reserved", "no role uses"),
        (job({**MIX, "limits": {"spot": 1, "on-demand": 2}}), ".limits", "a class to 3 replicas of worker, and it may have 4"),
        (
            job({**MIX, "limits": {"spot": 3, "on-demand": 4}}, elastic={"minReplicas": 1, "maxReplicas": 8}, batch={"globalSize": 8}),
            ".limits",
            "to 7 replicas of worker, and it may have 8",
        ),
        (job({**MIX, "spares": ["spot"], "limits": {"spot": 1}}, recovery={"spares": 1}), ".limits.spot", "leave it out of spares"),
        (job({**MIX, "fallbackAfterSeconds": 1800}), ".fallbackAfterSeconds", "startupDeadlineSeconds (1800)"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_field(refused: TrainingJob, field: str, words: str) -> None:
    [problem] = problems(refused)
    assert (problem.field, absent(problem.message, words)) == (f"spec.scheduling.capacity{field}", [])


def of_installation(capacity: Any, classes: Any) -> list[str]:
    written = job(capacity)
    return [str(each) for each in pod_problems(written, written.spec, defaults=[JobDefaults(classes=classes)], images=default_images())]


def test_an_installation_refuses_a_class_that_it_lacks_and_names_its_own() -> None:
    assert of_installation(MIX, DEFAULT_CLASSES) == []
    [problem] = of_installation({"roles": {"worker": ["spot", "lease"]}}, DEFAULT_CLASSES)
    assert absent(problem, "spec.scheduling.capacity.roles.worker[1]", "on-demand", "reserved", "spot", '"lease"') == []
    [problem] = of_installation(MIX, {})
    assert "this installation has no capacity classes" in problem


def test_other_places_warn_about_classes_that_only_an_installation_knows() -> None:
    [remark] = remarks(job({"classes": ["spot", "lease"]}))
    assert absent(str(remark), "lease", "only your cluster") == []
    assert remarks(job(MIX)) == []
