"""Fetches objects of an S3 bucket, with the client that checkpoints and data files use."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from muster_contract.errors import InputForbidden, InputNotFound, InputUnavailable, TrainerError
from muster_contract.inputs import BucketSource
from muster_trainer.checkpoint.objects import ObjectPath, drop_clients
from muster_trainer.inputs.cache import PART
from muster_trainer.inputs.remote import Listing, Remote, RemoteFile

_DENIED = ("AccessDenied", "Access Denied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden", "signature", "credentials")


class Bucket(Remote):
    """The objects below a prefix. `variables` come from the Secret of the input, and replace those of the environment."""

    fixed = ""
    folder = ""
    has_revisions = False

    def __init__(self, name: str, source: BucketSource, variables: Mapping[str, str]) -> None:
        self._name = name
        self._root = ObjectPath("/".join(filter(None, (f"s3://{source.bucket}", source.folder))))
        if variables:
            for key in [key for key in os.environ if key.startswith("AWS_")]:
                del os.environ[key]
            os.environ.update({key: value for key, value in variables.items() if key.startswith("AWS_")})
            drop_clients()
        self.identity = ("s3", os.environ.get("AWS_ENDPOINT_URL", ""), self._root.uri)

    def listing(self, revision: str) -> Listing:
        objects = self._root.files()
        if any(not path for path, _, _ in objects):
            raise InputNotFound(f"input {self._name}: {self._root} is one object; write the prefix of the objects, without a file name")
        text = json.dumps(sorted(objects), separators=(",", ":"))
        files = tuple(RemoteFile(path, size) for path, size, _ in sorted(objects))
        return Listing(hashlib.sha256(text.encode()).hexdigest()[:40], files)

    def fetch(self, file: RemoteFile, listing: Listing, target: Path) -> None:
        path = target / file.path
        with suppress(FileNotFoundError):
            if path.lstat().st_size == file.size:
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = target.parent / f"{threading.get_ident()}{PART}"
        (self._root / file.path).download(part)
        part.replace(path)

    def error(self, error: Exception) -> TrainerError:
        text = " ".join(str(getattr(error, "strerror", None) or error).split())[:500]
        place = f"input {self._name}: {self._root}"
        number = getattr(error, "errno", None)
        if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:
            return InputNotFound(f"{place} does not exist; correct the bucket and the prefix in its source")
        if number == errno.EACCES or any(word in text for word in _DENIED):
            return InputForbidden(f"{place}: the store refuses access: {text}; correct the Secret of its secretRef")
        return InputUnavailable(f"{place}: the store cannot be reached or does not answer: {text}")
