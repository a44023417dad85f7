"""Job files have the same meaning as for kubectl, and hostile text ends with a message."""

import math
import tracemalloc

import pytest

from muster.admission.yaml_text import MAX_DEPTH, MAX_NODES, UnreadableYamlError, read_yaml, write_yaml

# The value of each word for `sigs.k8s.io/yaml` (tried with v1.6.0, which kubectl 1.34 uses).
WORDS = [
    ("1e-3", 0.001),
    ("5e-2", 0.05),
    ("1_000", 1000),
    ("0x1f", 31),
    ("010", 8),
    ("0o10", 8),
    ("0b101", 5),
    ("08", 8.0),
    ("-7", -7),
    ("+7", 7),
    (".5", 0.5),
    ("5.", 5.0),
    ("yes", True),
    ("off", False),
    ("n", False),
    ("~", None),
    ("null", None),
    ("None", "None"),
    ("1:30", "1:30"),
    ("2026-11-21", "2026-11-21"),
    ("2x4", "2x4"),
    ("500m", "500m"),
    ("1e400", "1e400"),
    ("'5'", "5"),
    ('"yes"', "yes"),
    ("!!str 5", "5"),
]


@pytest.mark.parametrize(("word", "value"), WORDS)
def test_a_plain_word_has_the_same_value_as_for_kubectl(word, value):
    data = read_yaml(f"field: {word}\n").data
    assert data == {"field": value}
    assert type(data["field"]) is type(value)


def test_infinity_and_nan_are_numbers():
    assert read_yaml("[.inf, -.inf]").data == [math.inf, -math.inf]
    assert math.isnan(read_yaml("[.nan]").data[0])


def test_every_field_has_its_line():
    lines = read_yaml("a:\n  b: 1\n  c:\n  - x\n  - d/e: 2\n").lines
    assert lines == {"a": 1, "a.b": 2, "a.c": 3, "a.c[0]": 4, "a.c[1]": 5, "a.c[1][d/e]": 5}


def test_anchors_and_merges_are_read_and_own_keys_override_merged_keys():
    text = "base: &base {one: 1, two: 2}\nmore: {<<: *base, two: 3}\nlist: {<<: [{two: 5}, *base]}\n"
    assert read_yaml(text).data == {"base": {"one": 1, "two": 2}, "more": {"one": 1, "two": 3}, "list": {"one": 1, "two": 5}}


def test_a_quoted_merge_sign_is_a_plain_key():
    assert read_yaml('{"<<": 1}').data == {"<<": 1}


def test_a_duplicate_key_is_named_with_both_lines():
    document = read_yaml("a: 1\nb: 2\na: 3\n")
    assert [str(problem) for problem in document.problems] == ["a: is there twice, on lines 1 and 3; keep one"]
    assert document.data["a"] == 1


def test_an_empty_document_at_the_end_is_ignored():
    assert read_yaml("---\na: 1\n---\n").data == {"a": 1}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
LONG_BOMB = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]\n"
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{k: {{<<: [*a{i - 1}, *a{i - 1}]}}, l: *a{i - 1}}}\n" for i in range(1, 40))
CHAIN = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{k: *a{i - 1}}}\n" for i in range(1, 100))

REFUSED = [
    ("", None, "is empty: write apiVersion, kind, metadata and spec"),
    ("# nothing\n---\n...\n", None, "is empty: write apiVersion, kind, metadata and spec"),
    ("a: 1\n---\nb: 2\n---\nc: 3\n", 3, "holds 3 documents: put each into a file of its own"),
    ("a: [\n", 2, "is not YAML (line 2, column 1): did not find expected node content"),
    ("a: b: c\n", 1, "is not YAML (line 1, column 5): mapping values are not allowed in this context"),
    ("a:\n\tb: 1\n", 2, "is not YAML (line 2, column 1): YAML is indented with spaces, not with tabs"),
    ("a: \x01\n", None, "is not YAML: the character U+0001 is not allowed; write it as an escape"),
    ("x: &x [*x]\n", 1, "the alias *x names no finished anchor before it"),
    ("a: *b\n", 1, "the alias *b names no finished anchor before it"),
    ("1: a\n", 1, 'the key 1 is a number to YAML: put it in quotes, "1"'),
    ("a: 1\non: a\n", 2, 'the key on is true to YAML: put it in quotes, "on"'),
    ("? [a]\n: b\n", 1, "a key must be text, not a list, a mapping or an alias"),
    ("a: !!python/object:os.system x\n", 1, "the tag tag:yaml.org,2002:python/object:os.system is not allowed: leave it out"),
    ("<<: 5\n", 1, "<< takes a mapping or a list of mappings"),
    ("[" * 5000, 1, f"is nested deeper than {MAX_DEPTH} levels"),
    ("- " * 5000, 1, f"is nested deeper than {MAX_DEPTH} levels"),
    (CHAIN, MAX_DEPTH, f"is nested deeper than {MAX_DEPTH} levels when its aliases are expanded"),
    (BOMB, 7, "grows too large when its aliases (*name) are expanded: write fewer of them"),
    (LONG_BOMB, 2, "grows too large when its aliases (*name) are expanded: write fewer of them"),
    (MERGE_BOMB, 13, "grows too large when its aliases (*name) are expanded: write fewer of them"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("text", "line", "message"), REFUSED)
def test_text_that_is_not_one_document_is_refused_with_its_line(text, line, message):
    with pytest.raises(UnreadableYamlError) as refused:
        read_yaml(text)
    assert str(refused.value) == message
    assert refused.value.line == line


@pytest.mark.parametrize("text", ["Y", "n", "yes", "~", "", "1e3", "0o17", "0x1F", "1_0", ".inf", "-5", "2026-11-23", "plain", "a: b", "é"])
def test_written_text_is_read_back_as_text(text: str) -> None:
    assert read_yaml(write_yaml({text or "empty": text, "list": [text]})).data == {text or "empty": text, "list": [text]}


@pytest.mark.parametrize("text", ["[" + "[]," * MAX_NODES + "]", "".join(f"a{number}: 1\n" for number in range(MAX_NODES))])
def test_a_document_with_very_many_values_is_read_no_further(text: str) -> None:
    with pytest.raises(UnreadableYamlError, match="more than 20,000 values"):
        read_yaml(text)


def test_long_keys_above_many_values_take_little_memory() -> None:
    """Each value has a path, with all keys above it."""
    depth, key = MAX_DEPTH - 2, "k" * 12_000
    text = f"{{? {key} : " * depth + "[" + "1," * 12_000 + "]" + "}" * depth
    tracemalloc.start()
    try:
        lines = read_yaml(text).lines
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
    assert len(lines) > 12_000
