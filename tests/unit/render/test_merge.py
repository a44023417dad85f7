"""Strategic merge of a user's pod template."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from muster.render.merge import MergeError, strategic_merge

CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("maps are merged", {"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "d": 4}}, {"a": {"b": 1, "c": 3, "d": 4}}),
    ("null removes a key", {"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
    ("null for what is absent does nothing", {"a": 1}, {"b": None}, {"a": 1}),
    ("a map is deleted", {"a": {"b": 1}, "c": 2}, {"a": {"$patch": "delete"}}, {"c": 2}),
    ("a map is replaced", {"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}),
    ("a list without a key is replaced", {"command": ["a", "b"]}, {"command": ["c"]}, {"command": ["c"]}),
    ("a map takes the place of a text", {"a": "text"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ("directives in a new map leave no trace", {}, {"a": {"b": {"$patch": "replace", "c": 1}}}, {"a": {"b": {"c": 1}}}),
    (
        "containers are merged by name, new ones follow",
        {"containers": [{"name": "trainer", "image": "a", "env": [{"name": "X", "value": "1"}]}]},
        {"containers": [{"name": "sidecar", "image": "s"}, {"name": "trainer", "env": [{"name": "Y", "value": "2"}]}]},
        {
            "containers": [
                {"name": "trainer", "image": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
                {"name": "sidecar", "image": "s"},
            ]
        },
    ),
    (
        "an item is deleted",
        {"env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
        {"env": [{"name": "X", "$patch": "delete"}]},
        {"env": [{"name": "Y", "value": "2"}]},
    ),
    (
        "an item is replaced",
        {"containers": [{"name": "t", "image": "a", "tty": True}]},
        {"containers": [{"name": "t", "$patch": "replace", "image": "b"}]},
        {"containers": [{"name": "t", "image": "b"}]},
    ),
    (
        "a whole list is replaced",
        {"volumes": [{"name": "a", "emptyDir": {}}]},
        {"volumes": [{"$patch": "replace"}, {"name": "b", "emptyDir": {}}]},
        {"volumes": [{"name": "b", "emptyDir": {}}]},
    ),
    (
        "a volume of another kind takes the place of the old",
        {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]},
        {"volumes": [{"name": "shm", "hostPath": {"path": "/dev/shm"}}]},
        {"volumes": [{"name": "shm", "hostPath": {"path": "/dev/shm"}}]},
    ),
    (
        "a volume of the same kind is merged",
        {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]},
        {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}]},
        {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
    ),
    (
        "a variable from a secret takes the place of a value",
        {"env": [{"name": "X", "value": "1"}]},
        {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
    ),
    (
        "mounts are merged by path, ports by number",
        {"volumeMounts": [{"name": "a", "mountPath": "/a"}], "ports": [{"containerPort": 1, "name": "one"}]},
        {"volumeMounts": [{"name": "b", "mountPath": "/a"}], "ports": [{"containerPort": 2}]},
        {"volumeMounts": [{"name": "b", "mountPath": "/a"}], "ports": [{"containerPort": 1, "name": "one"}, {"containerPort": 2}]},
    ),
    (
        "tolerations are merged by key and effect, one without a key is a new one",
        {"tolerations": [{"key": "lost", "effect": "NoExecute", "tolerationSeconds": 30}]},
        {"tolerations": [{"key": "lost", "effect": "NoExecute", "tolerationSeconds": 5}, {"operator": "Exists"}]},
        {"tolerations": [{"key": "lost", "effect": "NoExecute", "tolerationSeconds": 5}, {"operator": "Exists"}]},
    ),
]


@pytest.mark.parametrize(("base", "patch", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_patch_is_merged(base: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert strategic_merge(base, patch) == expected


@pytest.mark.parametrize(
    ("patch", "path", "message"),
    [
        ({"spec": {"containers": [{"image": "a"}]}}, "spec.containers[0]", "it has no name"),
        ({"spec": {"containers": ["trainer"]}}, "spec.containers[0]", "an item of containers is an object"),
        ({"spec": "text"}, "spec", "must be an object"),
        ({"spec": {"volumes": "text"}}, "spec.volumes", "must be a list"),
        ({"spec": {"$patch": "remove"}}, "spec.$patch", "write replace, delete or merge"),
        ({"spec": {"$retainKeys": ["a"]}}, "spec.$retainKeys", "is not supported"),
    ],
)
def test_an_invalid_patch_is_refused_with_its_path(patch: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(MergeError, match=message.replace("$", r"\$")) as caught:
        strategic_merge({"spec": {"volumes": []}}, patch)
    assert caught.value.path == path


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
objects = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: isinstance(value, dict))
named = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("xyz")}, optional={"value": st.text(max_size=3)}), unique_by=lambda item: item["name"]
).map(lambda items: {"env": items})


def merged_or_skipped(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    try:
        return strategic_merge(base, patch)
    except MergeError:
        assume(False)
        raise


@given(base=objects, patch=objects)
def test_a_merge_changes_neither_side_and_its_result_is_a_copy(base: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy((base, patch))
    result = merged_or_skipped(base, patch)
    assert base == before[0]
    for value in list(result.values()):
        if isinstance(value, dict):
            value["changed"] = True
        elif isinstance(value, list):
            value.append("changed")
    assert patch == before[1]


@given(base=objects, patch=objects)
def test_a_patch_that_is_merged_twice_gives_the_same_result(base: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merged_or_skipped(base, patch)
    assert strategic_merge(once, patch) == once


@given(base=objects)
def test_an_empty_patch_changes_nothing(base: dict[str, Any]) -> None:
    assert strategic_merge(base, {}) == base


@given(base=named, patch=named)
def test_a_merged_list_has_each_name_once_and_the_patch_wins(base: dict[str, Any], patch: dict[str, Any]) -> None:
    merged = strategic_merge(base, patch)["env"]
    names = [item["name"] for item in merged]
    assert len(set(names)) == len(names)
    assert set(names) == {item["name"] for item in (*base["env"], *patch["env"])}
    assert names[: len(base["env"])] == [item["name"] for item in base["env"]]
    by_name = {item["name"]: item for item in merged}
    for item in patch["env"]:
        assert item.items() <= by_name[item["name"]].items()
