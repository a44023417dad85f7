"""Names become paths of the API server only if an object can have them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.kubernetes.api_paths import InvalidNameError, collection, member

HOSTILE = [
    "",
    ".",
    "..",
    "a/b",
    "../pods",
    "a?x=",
    "a#b",
    "a%2fb",
    "a\\b",
    "a b",
    "a\n",
    "A",
    "-a",
    "a-",
    "a..b",
    ".a",
    "a.",
    "é",
    "a" * 254,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_no_object_can_have_makes_no_path(name: str) -> None:
    with pytest.raises(InvalidNameError):
        member(collection("v1", "pods"), name)
    with pytest.raises(InvalidNameError):
        collection("v1", "pods", namespace=name)


def test_names_become_segments_of_the_path() -> None:
    pods = collection("v1", "pods", namespace="team-1")
    assert member(pods, "a.b-c", subresource="log") == "/api/v1/namespaces/team-1/pods/a.b-c/log"
    assert collection("muster.dev/v1beta1", "trainingjobs") == "/apis/muster.dev/v1beta1/trainingjobs"
    assert member(pods, f"{'a' * 100}.{'b' * 152}")


@pytest.mark.parametrize("namespace", ["a.b", "a" * 64])
def test_the_name_of_a_namespace_is_a_label(namespace: str) -> None:
    with pytest.raises(InvalidNameError):
        collection("v1", "pods", namespace=namespace)


@given(st.text(max_size=20))
def test_a_path_has_the_segments_of_its_kind_for_any_name(name: str) -> None:
    try:
        path = member(collection("v1", "pods", namespace="team"), name)
    except InvalidNameError:
        return
    assert path.split("/") == ["", "api", "v1", "namespaces", "team", "pods", name]
    assert not set(path) & set("?#%\\ ")
