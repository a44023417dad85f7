"""Names, sources and progress of inputs."""

from __future__ import annotations

import pytest

from muster_contract.errors import BadConfiguration
from muster_contract.inputs import (
    BucketSource,
    HubSource,
    InputRequest,
    Source,
    amount,
    input_variables,
    is_plain,
    parse_source,
    requests_from_json,
    requests_to_json,
    variable_of,
)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf://org/tiny", HubSource("model", "org/tiny", "", "")),
        ("hf://org/tiny@v1.0", HubSource("model", "org/tiny", "v1.0", "")),
        ("hf://org/tiny@main/a/b/", HubSource("model", "org/tiny", "main", "a/b")),
        ("hf://datasets/org/rows/data", HubSource("dataset", "org/rows", "", "data")),
        ("s3://bucket", BucketSource("bucket", "")),
        ("s3://bucket/a/b/", BucketSource("bucket", "a/b")),
    ],
)
def test_a_source_has_its_parts(text: str, source: Source) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tiny",
        "hf://tiny",
        "hf://datasets/rows",
        "hf://org/tiny@",
        "hf://org/tiny@a/b@c",
        "hf://org/tiny/../other",
        "hf://org/tiny/./a",
        "hf://-org/tiny",
        "hf://org/tiny//a",
        "hf://org/ti ny",
        "hf://org/tiny/a\\b",
        "hf://org/tiny/a\nb",
        "s3://",
        "s3:///a",
        "s3://Bucket",
        "file:///etc",
        "hf://org/" + "a" * 2000,
    ],
)
def test_other_sources_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must "):
        parse_source(text)


def test_the_variable_of_an_input_has_its_name_in_capitals() -> None:
    assert variable_of("base-model") == "MUSTER_INPUT_BASE_MODEL"
    assert input_variables(["a"]) == {"MUSTER_INPUT_A": "/inputs/a"}


@pytest.mark.parametrize("path", ["", "/a", "../a", "a/../b", "a//b", "a/.", "a\\b", "a\0", "a\nb", "a/", "x" * 2000])
def test_paths_that_lead_elsewhere_are_not_plain(path: str) -> None:
    assert not is_plain(path)
    assert is_plain("a/.b/c d..e")


def test_requests_survive_their_variable_and_wrong_ones_are_refused() -> None:
    requests = [InputRequest("a", "hf://org/tiny", "c0ffee"), InputRequest("b", "s3://bucket")]
    assert requests_from_json(requests_to_json(requests)) == requests
    for text in ("", "{}", "[]", "[1]", '[{"name": "A", "source": "s3://bucket"}]', '[{"name": "a", "source": "a"}]', "[" * 10_000):
        with pytest.raises(BadConfiguration, match="MUSTER_INPUTS"):
            requests_from_json(text)


def test_amounts_have_one_digit() -> None:
    assert [amount(size) for size in (0, 999, 1000, 3_145_728, 999_960_000, 8_000_000_000, 2 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "3.1 MB",
        "1.0 GB",
        "8.0 GB",
        "2.0 TB",
    ]
