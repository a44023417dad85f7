"""Fetches models and data sets of a Hugging Face hub, with its own client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from muster_contract.errors import BadConfiguration, InputForbidden, InputNotFound, InputRefused, InputUnavailable, TrainerError
from muster_contract.inputs import HubSource
from muster_trainer.inputs.cache import CLIENT_FOLDER
from muster_trainer.inputs.remote import Listing, Remote, RemoteFile, setting

SECONDS = 30.0
"""The time limit for one answer of the hub."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DENIED = (401, 403)


class Hub(Remote):
    """A repository. `variables` come from the Secret of the input."""

    has_revisions = True

    def __init__(self, name: str, source: HubSource, variables: Mapping[str, str]) -> None:
        self._name = name
        self._source = source
        self._token = setting(variables, "HF_TOKEN")
        self._endpoint = setting(variables, "HF_ENDPOINT")
        self.identity = ("hf", self._endpoint or "", source.kind, source.repository, source.folder)
        self.folder = source.folder
        self.fixed = source.revision if _COMMIT.fullmatch(source.revision) else ""

    def listing(self, revision: str) -> Listing:
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise BadConfiguration(f"input {self._name}: {error}: pip install huggingface_hub, or use the bundled image") from None
        requested = revision if _COMMIT.fullmatch(revision) else self._source.revision
        api = HfApi(endpoint=self._endpoint, token=self._token)
        info = api.repo_info(
            self._source.repository, repo_type=self._source.kind, revision=requested or None, files_metadata=True, timeout=SECONDS
        )
        commit = info.sha or ""
        if not _COMMIT.fullmatch(commit):
            raise InputRefused(f"input {self._name}: the hub names no commit, but {commit!r:.80}")
        files = []
        for each in getattr(info, "siblings", None) or ():
            if self.folder and not each.rfilename.startswith(f"{self.folder}/"):
                continue
            if each.rfilename.startswith(f"{CLIENT_FOLDER}/"):
                raise InputRefused(f"input {self._name}: {each.rfilename!r:.120} has a name that the client of the hub uses itself")
            files.append(RemoteFile(each.rfilename, -1 if each.size is None else each.size, _digest(each)))
        return Listing(commit, tuple(files))

    def fetch(self, file: RemoteFile, listing: Listing, target: Path) -> None:
        from huggingface_hub import hf_hub_download

        hf_hub_download(
            self._source.repository,
            file.path,
            repo_type=self._source.kind,
            revision=listing.revision,
            local_dir=target,
            token=self._token,
            endpoint=self._endpoint,
            etag_timeout=SECONDS,
        )

    def error(self, error: Exception) -> TrainerError:
        from huggingface_hub import errors

        what = f"{self._source.kind} {self._source.repository}"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.GatedRepoError):
            return self._refused(InputForbidden, f"access to {what} must be granted on the hub, to the owner of HF_TOKEN in its secretRef")
        if isinstance(error, errors.RevisionNotFoundError):
            return self._refused(
                InputNotFound, f"{what} has no revision {self._source.revision or 'of its default branch'}; correct what follows @"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return self._refused(
                InputNotFound, f"{what} does not exist, or is private: correct its source, or name a Secret with HF_TOKEN in secretRef"
            )
        if isinstance(error, errors.HFValidationError):
            return self._refused(InputRefused, f"the client of the hub does not accept {what}: {error}")
        if status in _DENIED:
            return self._refused(
                InputForbidden, f"the hub refuses access to {what} ({status}); correct HF_TOKEN in the Secret of its secretRef"
            )
        if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
            return self._refused(InputRefused, f"{what} lists a file that it does not have: {_line(error)}")
        return InputUnavailable(f"input {self._name}: the hub cannot be reached or does not answer: {_line(error)}")

    def _refused(self, kind: type[InputRefused], message: str) -> InputRefused:
        return kind(f"input {self._name}: {message}")


def _digest(sibling: object) -> str:
    """The digest of a file in the hub's listing: SHA-256 of the content for large files, and the git id of the blob for others."""
    content = getattr(getattr(sibling, "lfs", None), "sha256", None)
    blob = getattr(sibling, "blob_id", None)
    return f"sha256:{content}" if content else f"git:{blob}" if blob else ""


def _line(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, Exception) and not str(error) else error
    return " ".join(str(cause).split())[:500] or type(cause).__name__
