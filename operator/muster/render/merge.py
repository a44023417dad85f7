"""Strategic merge: merges a user's pod template into a rendered pod, as `kubectl patch` does.

Maps are merged key by key, and null removes a key. Lists of items with names are merged by name; all other lists are replaced.
`$patch: replace` and `$patch: delete` work in maps and in items of merged lists, and `- $patch: replace` replaces a whole list.
Source: the patchMergeKey tags of the Kubernetes API types. One list differs: tolerations, which Kubernetes replaces, are merged, so that
tolerating a spot node does not cost the short toleration of lost nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "topologySpreadConstraints": ("topologyKey",),
    "ownerReferences": ("uid",),
    "tolerations": ("key", "effect"),
}

# One of the other keys of such an item is its kind (emptyDir or configMap, value or valueFrom). A new kind replaces the old one.
_ONE_OF_LISTS = frozenset({"volumes", "env"})
# A toleration without a key tolerates everything.
_MAY_LACK_KEY = frozenset({"tolerations"})
_DIRECTIVE = "$patch"


class MergeError(ValueError):
    """A patch that cannot be merged. `path` is the path of the field in the patch."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


def strategic_merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `patch` merged into it. Changes neither. The result shares the unchanged parts of `base`. Raises MergeError."""
    return _merge_map(base, _copied(patch), "") or {}


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _merge_map(base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """The merged map. None if the patch deletes it."""
    match _directive(patch, path):
        case "delete":
            return None
        case "replace":
            base = {}
    result = dict(base)
    for key, value in patch.items():
        if key == _DIRECTIVE:
            continue
        if str(key).startswith("$"):
            raise MergeError(_join(path, key), "this directive is not supported; use $patch: replace or $patch: delete")
        merged = _merge_value(key, result.get(key), value, path=_join(path, key))
        if merged is None:
            result.pop(key, None)
        else:
            result[key] = merged
    return result


def _merge_value(key: str, base: Any, patch: Any, *, path: str) -> Any:
    for kind, word in ((Mapping, "an object"), (list, "a list")):
        if isinstance(base, kind) and patch is not None and not isinstance(patch, kind):
            raise MergeError(path, f"must be {word}, because it overrides one, not {patch!r:.80}")
    if isinstance(patch, Mapping):
        return _merge_map(base if isinstance(base, Mapping) else {}, patch, path)
    if isinstance(patch, list):
        if key in MERGE_KEYS:
            return _merge_list(key, base if isinstance(base, list) else [], patch, path=path)
        return _replaced_list(patch, path)
    return patch


def _replaced_list(patch: Sequence[Any], path: str) -> list[Any]:
    result = []
    for position, item in enumerate(patch):
        if isinstance(item, Mapping):
            item = _merge_map({}, {key: value for key, value in item.items() if key != _DIRECTIVE}, f"{path}[{position}]")
            if not item:
                continue
        result.append(item)
    return result


def _merge_list(key: str, base: Sequence[Any], patch: Sequence[Any], *, path: str) -> list[Any]:
    """The merged list. Items of `base` keep their order, and new ones follow."""
    whole = any(item == {_DIRECTIVE: "replace"} for item in patch)
    result: dict[Any, Any] = {} if whole else {_identity(key, item, path): item for item in base}
    for position, item in enumerate(patch):
        if item == {_DIRECTIVE: "replace"}:
            continue
        where = f"{path}[{position}]"
        identity = _identity(key, item, where)
        merged = _merge_map(_compatible(key, result.get(identity, {}), item), item, where)
        if merged is None:
            result.pop(identity, None)
        else:
            result[identity] = merged
    return list(result.values())


def _compatible(key: str, base: Mapping[str, Any], patch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the base's item that may remain beside the patch's item."""
    kinds = set(patch) - {*MERGE_KEYS[key], _DIRECTIVE}
    if key not in _ONE_OF_LISTS or not kinds:
        return base
    return {name: value for name, value in base.items() if name in patch}


def _identity(key: str, item: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(item, Mapping):
        raise MergeError(path, f"an item of {key} is an object, not {item!r:.80}; write {MERGE_KEYS[key][0]}: ... and the rest")
    identity = tuple(item.get(name) for name in MERGE_KEYS[key])
    if key not in _MAY_LACK_KEY and not isinstance(identity[0], str | int):
        raise MergeError(path, f"it has no {MERGE_KEYS[key][0]}, by which {key} are merged; write one")
    return tuple(str(part) for part in identity)


def _directive(patch: Mapping[str, Any], path: str) -> str | None:
    directive = patch.get(_DIRECTIVE)
    if directive in (None, "merge", "replace", "delete"):
        return directive
    raise MergeError(_join(path, _DIRECTIVE), f"{directive!r:.80} is not a directive; write replace, delete or merge")


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
