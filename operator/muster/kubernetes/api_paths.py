"""Paths of the API server. They are made only here, from names that are checked first.

Users, tenants, and addresses of the web page supply names. A name such as `../pods?x=` would lead to another path, with the rights of the
process that sends the request.
"""

from __future__ import annotations

import re
from typing import NewType

from muster.kubernetes.errors import NotFoundError

ApiPath = NewType("ApiPath", str)

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST = 253
_PARTS = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*")


class InvalidNameError(NotFoundError):
    """No object can have this name, so none is there."""


def collection(version: str, plural: str, *, namespace: str | None = None) -> ApiPath:
    """The objects of a kind in a namespace, or in all. `version` is the apiVersion of the kind. Raises InvalidNameError."""
    within = "" if namespace is None else f"/namespaces/{checked_namespace(namespace)}"
    return ApiPath(f"{api(version)}{within}/{plural}")


def member(folder: ApiPath, name: str, *, subresource: str = "") -> ApiPath:
    """An object of a collection, or a part of it. Raises InvalidNameError."""
    if not _is_subdomain(name):
        raise InvalidNameError(
            f"{name[:_LONGEST]!r} is not the name of an object: "
            "write at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at each end"
        )
    return ApiPath(f"{folder}/{name}{f'/{subresource}' if subresource else ''}")


def api(version: str) -> ApiPath:
    """The resources of an API version, such as `v1` or `batch/v1`."""
    return ApiPath(f"/apis/{version}" if "/" in version else f"/api/{version}")


def checked_namespace(name: str) -> str:
    """The name of a namespace, which is a DNS label. Raises InvalidNameError."""
    if not _LABEL.fullmatch(name):
        raise InvalidNameError(
            f"{name[:_LONGEST]!r} is not the name of a namespace: "
            "write at most 63 lower-case letters, digits and '-', with a letter or digit at each end"
        )
    return name


def _is_subdomain(name: str) -> bool:
    """Source: Kubernetes documentation, "Object Names and IDs": DNS subdomain names of RFC 1123."""
    if len(name) > _LONGEST or not _PARTS.fullmatch(name):
        return False
    return all(part[0] != "-" and part[-1] != "-" for part in name.split("."))
