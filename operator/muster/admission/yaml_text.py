"""YAML as kubectl reads it, with line numbers, and with limits that hold against hostile text.

PyYAML's own loader is not used: it silently keeps the last of two equal keys, expands aliases without bound, and has other rules for plain
words than kubectl (`1e-3` would be text, `1:30` a number). One file must mean the same on a laptop and on a cluster, so plain
words are resolved here as `sigs.k8s.io/yaml` (go-yaml v2) resolves them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from muster.admission.paths import step
from muster.api.problems import Problem

JOB_TOP = "apiVersion, kind, metadata and spec"
"""Fields at the top of a job file."""
MAX_DEPTH = 64
MAX_NODES = 20_000
"""Fields and values of a document. The parts of a job that have no schema may have 4,000 together (`bounds.py`)."""
MAX_EXPANDED = 4 * 2**20
"""Characters and nodes that a document may have after its aliases are expanded."""

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]{1,16})|0[bB]([01]{1,64})|0[oO]?([0-7]{1,22})|(0|[1-9][0-9]{0,19}))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


class UnreadableYamlError(ValueError):
    """Text that is not a YAML document, or not one that Muster accepts."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None), the line of each field by its path, and problems of the text."""

    data: Any
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class _Node:
    value: Any
    size: int
    height: int


def read_yaml(text: str, *, top: str = JOB_TOP) -> Document:
    """The one document of `text`. `top` names its top-level fields for messages. Raises UnreadableYamlError if there is no document or more
    than one, or if the text is not valid YAML."""
    composer = _Composer(_events(text))
    documents = composer.documents()
    if not documents:
        raise UnreadableYamlError(f"is empty: write {top}")
    if len(documents) > 1:
        raise UnreadableYamlError(f"holds {len(documents)} documents: put each into a file of its own", line=composer.starts[1])
    return Document(documents[0], composer.lines, composer.problems)


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes texts that `read_yaml` and kubectl would read as another type. PyYAML recognises fewer such words."""


def _represent_text(dumper: Any, text: str) -> yaml.ScalarNode:
    is_other_type = text in _WORDS or _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)
    style = '"' if is_other_type else "|" if "\n" in text else None
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Dumper.add_representer(str, _represent_text)


def write_yaml(*documents: Any, **options: Any) -> str:
    """YAML that `read_yaml` and kubectl read back as it was. `options` are those of `yaml.dump_all`."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)
    return text


def _events(text: str) -> Iterator[yaml.Event]:
    loader = None
    try:
        loader = _PARSER(text)
        while loader.check_event():
            yield loader.get_event()
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text) from error
    except yaml.reader.ReaderError as error:
        raise UnreadableYamlError(
            f"is not YAML: the character {_code_point(error.character)} is not allowed; write it as an escape"
        ) from error
    except yaml.YAMLError as error:
        raise UnreadableYamlError(f"is not YAML: {error}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _not_yaml(error: yaml.MarkedYAMLError, text: str) -> UnreadableYamlError:
    mark = error.problem_mark or error.context_mark
    reason = error.problem or error.context
    if mark is None:
        return UnreadableYamlError(f"is not YAML: {reason}")
    if reason and "maximum nesting depth" in reason:  # libyaml since PyYAML 6.0.4, which looks ahead
        return UnreadableYamlError(f"is nested deeper than {MAX_DEPTH} levels", line=mark.line + 1)
    line = text.split("\n")[mark.line : mark.line + 1]
    if line and line[0][mark.column : mark.column + 1] == "\t":
        reason = "YAML is indented with spaces, not with tabs"
    return UnreadableYamlError(f"is not YAML (line {mark.line + 1}, column {mark.column + 1}): {reason}", line=mark.line + 1)


def _code_point(character: Any) -> str:
    return f"U+{character if isinstance(character, int) else ord(character[:1]):04X}"


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


class _Composer:
    """Builds plain data from parser events. An alias shares the value of its anchor and is charged the anchor's full size."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self.starts: list[int] = []
        self._events = events
        self._anchors: dict[str, _Node] = {}
        self._expanded = 0
        self._nodes = 0

    def documents(self) -> list[Any]:
        """The documents that are not empty. A last `---` gives an empty one."""
        documents = []
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                first = next(self._events)
                node = self._node(first, path="", depth=0)
                if node.value is not None:
                    documents.append(node.value)
                    self.starts.append(_line(first))
        return documents

    def _node(self, event: yaml.Event, *, path: str, depth: int) -> _Node:
        line = _line(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise UnreadableYamlError(f"has more than {MAX_NODES:,} values: put large values into a file or a ConfigMap", line=line)
        if isinstance(event, yaml.AliasEvent):
            node = self._aliased(event.anchor or "", line)
            self._charge(node.size, line)
            if depth + node.height > MAX_DEPTH:
                raise UnreadableYamlError(f"is nested deeper than {MAX_DEPTH} levels when its aliases are expanded", line=line)
            return node
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(_scalar(event), len(event.value) + 1, 0)
            self._charge(node.size, line)
        else:
            assert isinstance(event, yaml.CollectionStartEvent)
            if depth == MAX_DEPTH:
                raise UnreadableYamlError(f"is nested deeper than {MAX_DEPTH} levels", line=line)
            if event.tag not in (None, "!"):
                raise UnreadableYamlError(f"the tag {event.tag} is not allowed: leave it out", line=line)
            node = self._mapping(path, depth + 1) if isinstance(event, yaml.MappingStartEvent) else self._sequence(path, depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _charge(self, size: int, line: int) -> None:
        self._expanded += size
        if self._expanded > MAX_EXPANDED:
            raise UnreadableYamlError("grows too large when its aliases (*name) are expanded: write fewer of them", line=line)

    def _aliased(self, name: str, line: int) -> _Node:
        try:
            return self._anchors[name]
        except KeyError:
            raise UnreadableYamlError(f"the alias *{name} names no finished anchor before it", line=line) from None

    def _sequence(self, path: str, depth: int) -> _Node:
        items: list[Any] = []
        size, height = 1, 1
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            here = step(path, len(items))
            self.lines[here] = _line(event)
            item = self._node(event, path=here, depth=depth)
            items.append(item.value)
            size, height = size + item.size, max(height, item.height + 1)
        return _Node(items, size, height)

    def _mapping(self, path: str, depth: int) -> _Node:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        size, height = 1, 1
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            merging = key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]
            here = step(path, key)
            line = _line(event)
            first = self.lines.setdefault(here, line)
            value = self._node(next(self._events), path=here, depth=depth)
            size, height = size + value.size + len(key) + 1, max(height, value.height + 1)
            if merging:
                merged = {**_merge_sources(value.value, line), **merged}
                continue
            if key in own:
                where = f"on lines {first} and {line}" if line != first else f"on line {line}"
                self.problems.append(Problem(here, f"is there twice, {where}; keep one"))
                continue
            own[key] = value.value
        return _Node({**merged, **own}, size, height)

    def _key(self, event: yaml.Event) -> str:
        line = _line(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise UnreadableYamlError("a key must be text, not a list, a mapping or an alias", line=line)
        key = _scalar(event)
        if not isinstance(key, str):
            kind = "nothing" if key is None else "a number" if not isinstance(key, bool) else str(key).lower()
            raise UnreadableYamlError(f'the key {event.value} is {kind} to YAML: put it in quotes, "{event.value}"', line=line)
        return key


def _merge_sources(value: Any, line: int) -> dict[str, Any]:
    """The mappings of `<<`, merged. Earlier ones override later ones."""
    sources = value if isinstance(value, list) else [value]
    if not all(isinstance(source, dict) for source in sources):
        raise UnreadableYamlError("<< takes a mapping or a list of mappings", line=line)
    return {key: each for source in reversed(sources) for key, each in source.items()}


def _scalar(event: yaml.ScalarEvent) -> Any:
    if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
        raise UnreadableYamlError(f"the tag {event.tag} is not allowed: leave it out", line=_line(event))
    return _resolved(event.value) if event.tag is None and event.implicit[0] else event.value


def _resolved(word: str) -> Any:
    """The value of a plain (unquoted) word. Dates stay text."""
    if word in _WORDS:
        return _WORDS[word]
    if word[0] not in "+-.0123456789":
        return word
    digits = word.replace("_", "")
    if match := _INTEGER.fullmatch(digits):
        sign, *forms = match.groups()
        base, body = next((base, form) for base, form in zip((16, 2, 8, 10), forms, strict=True) if form is not None)
        number = int(body, base) * (-1 if sign == "-" else 1)
        if -(2**63) <= number < 2**64:
            return number
    if _FLOAT.fullmatch(digits) and math.isfinite(fraction := float(digits)):
        return fraction
    return word
