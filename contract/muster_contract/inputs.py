"""Inputs: models and data sets that are fetched before the training starts (`spec.inputs`).

The operator and `muster run` write them into `MUSTER_INPUTS`. The fetcher (`python -m muster_trainer.inputs`) reads that, puts each input
into a cache folder, and links `<folder>/<name>` to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from muster_contract.errors import BadConfiguration
from muster_contract.wire import LARGEST_INT, WireError, decode, document, encode, wire_field

MAX_INPUTS = 8
"""Inputs of one job."""
MAX_SOURCE = 1024
MAX_REVISION = 128
INPUT_NAME = r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?"
INPUT_NAME_MESSAGE = "at most 32 lower-case letters, digits and '-', beginning with a letter and not ending with '-'"
_PART = r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?"
_FOLDER = r"(/[^/@]+)*/?"
INPUT_SOURCE = rf"hf://(datasets/)?{_PART}/{_PART}(@[A-Za-z0-9_][A-Za-z0-9._-]*)?{_FOLDER}|s3://[a-z0-9][a-z0-9.-]*[a-z0-9]{_FOLDER}"
INPUT_SOURCE_MESSAGE = "must be hf://[datasets/]org/name[@revision][/folder] or s3://bucket[/prefix]"

FETCHER = "muster-inputs"
"""The name of the init container that fetches inputs."""
FOLDER_PATH = "/inputs"
"""The folder of the inputs in a pod."""
INPUTS = "MUSTER_INPUTS"
INPUTS_DIR = "MUSTER_INPUTS_DIR"
INPUTS_CACHE = "MUSTER_INPUTS_CACHE"
INPUTS_SECRETS = "MUSTER_INPUTS_SECRETS"
_PREFIX = "MUSTER_INPUT_"

FETCHER_VARIABLES: Mapping[str, str] = {
    f"{_PREFIX}<NAME>": "Folder of an input of the job (`spec.inputs`). NAME is its name in capitals, with `_` for each `-`.",
    INPUTS: "The inputs to fetch, as a JSON list. For the init container `muster-inputs`.",
    INPUTS_DIR: "Folder in which the init container makes a link for each input.",
    INPUTS_CACHE: "Folder in which the init container stores inputs. Pods of a node may share it.",
    INPUTS_SECRETS: "Folder with a folder for each input that has a Secret. Each file in it is one variable.",
}
"""Variables of inputs, with their meaning."""

MAX_BYTES = LARGEST_INT


@document
class InputRequest:
    """An input to fetch."""

    name: str = wire_field(min_length=1, max_length=32, doc="Name of the input.")
    source: str = wire_field(min_length=1, max_length=MAX_SOURCE, doc="Where it is.")
    revision: str = wire_field(default="", max_length=MAX_REVISION, doc="The revision that the job uses already. Empty: none yet.")


InputPhase = Literal["Waiting", "Fetching", "Ready"]


@document
class InputProgress:
    """The progress of one replica with one input."""

    name: str = wire_field(min_length=1, max_length=32, printable=True, doc="Name of the input.")
    phase: InputPhase = wire_field(default="Waiting", doc="`Waiting`, `Fetching` or `Ready`.")
    revision: str = wire_field(
        default="",
        max_length=MAX_REVISION,
        printable=True,
        doc="The resolved revision: the commit of a repository, or a digest of the listing of a bucket.",
    )
    bytes: int = wire_field(default=0, minimum=0, maximum=MAX_BYTES, doc="Bytes that are in the cache.")
    total_bytes: int | None = wire_field(default=None, minimum=0, maximum=MAX_BYTES, doc="Bytes of the whole input, once known.")


@dataclass(frozen=True)
class HubSource:
    """A model or data set of a Hugging Face hub. An empty `revision` means the default branch."""

    kind: Literal["model", "dataset"]
    repository: str
    revision: str
    folder: str


@dataclass(frozen=True)
class BucketSource:
    """Objects below a prefix of an S3 bucket."""

    bucket: str
    folder: str


Source = HubSource | BucketSource


def parse_source(text: str) -> Source:
    """The parts of `hf://...` or `s3://...`. Raises ValueError, whose message has the remedy."""
    if len(text) > MAX_SOURCE or not re.fullmatch(INPUT_SOURCE, text):
        raise ValueError(f"{INPUT_SOURCE_MESSAGE}, not {text!r:.120}")
    scheme, _, rest = text.partition("://")
    words = rest.rstrip("/").split("/")
    if any(word in (".", "..") or not word.isprintable() or "\\" in word for word in words):
        raise ValueError(f"must have plain names of folders, not {text!r:.120}")
    if scheme == "s3":
        return BucketSource(words[0], "/".join(words[1:]))
    kind: Literal["model", "dataset"] = "model"
    if words[0] == "datasets":
        kind, words = "dataset", words[1:]
    if len(words) < 2 or "@" in words[0]:
        raise ValueError(f"{INPUT_SOURCE_MESSAGE}, not {text!r:.120}")
    name, _, revision = words[1].partition("@")
    return HubSource(kind, f"{words[0]}/{name}", revision, "/".join(words[2:]))


def variable_of(name: str) -> str:
    """The variable with the folder of an input: `MUSTER_INPUT_BASE_MODEL` for `base-model`."""
    return _PREFIX + name.upper().replace("-", "_")


def input_variables(names: Iterable[str], folder: str = FOLDER_PATH) -> dict[str, str]:
    """The variable of each input, whose folders are below `folder`."""
    return {variable_of(name): f"{folder}/{name}" for name in names}


def requests_to_json(requests: Iterable[InputRequest]) -> str:
    """The value of `MUSTER_INPUTS`."""
    return json.dumps([encode(request) for request in requests])


def requests_from_json(text: str) -> list[InputRequest]:
    """The inputs in `MUSTER_INPUTS`. Raises BadConfiguration."""
    try:
        documents = json.loads(text)
        if not isinstance(documents, list) or not 1 <= len(documents) <= MAX_INPUTS:
            raise ValueError(f"a list of 1 to {MAX_INPUTS} inputs is needed")
        requests = [decode(InputRequest, each, f"[{index}]") for index, each in enumerate(documents)]
        for request in requests:
            if not re.fullmatch(INPUT_NAME, request.name):
                raise ValueError(f"a name must be {INPUT_NAME_MESSAGE}, not {request.name!r:.80}")
            parse_source(request.source)
    except (ValueError, RecursionError, WireError) as error:
        raise BadConfiguration(f"{INPUTS}: {error}") from None
    return requests


def is_plain(path: str) -> bool:
    """Whether a path from a remote listing is relative, and stays below the folder that it is joined to."""
    words = path.split("/")
    return path.isprintable() and "\\" not in path and len(path) <= MAX_SOURCE and all(word not in ("", ".", "..") for word in words)


def amount(size: int) -> str:
    """Bytes for a reader, such as `3.1 GB`."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"
