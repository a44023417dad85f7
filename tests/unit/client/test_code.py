"""A folder of code becomes a ConfigMap."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from muster.client import errors
from muster.client.code import MOST_BYTES, config_map_of


def test_files_keep_their_bytes_and_caches_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "table.bin").write_bytes(b"\xff\x00")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "train.pyc").write_bytes(b"x")
    made = config_map_of(tmp_path, job="digits", namespace="team")
    assert made["data"] == {"train.py": "print(1)\n"}
    assert made["binaryData"] == {"table.bin": "/wA="}
    assert made["metadata"]["namespace"] == "team"


def test_another_version_of_the_code_has_another_name(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("print(1)\n")
    first = config_map_of(tmp_path, job="digits", namespace="team")["metadata"]["name"]
    assert config_map_of(tmp_path, job="digits", namespace="team")["metadata"]["name"] == first
    file.write_text("print(2)\n")
    assert config_map_of(tmp_path, job="digits", namespace="team")["metadata"]["name"] != first


def test_files_that_do_not_fit_a_config_map_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(errors.RefusedError, match="no files"):
        config_map_of(tmp_path, job="digits", namespace="team")
    with pytest.raises(errors.RefusedError, match="not a folder"):
        config_map_of(tmp_path / "absent", job="digits", namespace="team")
    (tmp_path / "big").write_bytes(b"x" * (MOST_BYTES + 1))
    with pytest.raises(errors.RefusedError, match="put the code into an image"):
        config_map_of(tmp_path, job="digits", namespace="team")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "inner.py").write_text("")
    with pytest.raises(errors.RefusedError, match="use an image"):
        config_map_of(tmp_path, job="digits", namespace="team")


def test_very_many_empty_files_are_refused_as_their_names_do_not_fit(tmp_path: Path) -> None:
    for number in range(4_200):
        (tmp_path / f"{number:0240}").touch()
    with pytest.raises(errors.RefusedError, match="more than the"):
        config_map_of(tmp_path, job="digits", namespace="team")


def test_a_file_that_is_far_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    os.truncate(tmp_path / "train.py", 1 << 40)
    with pytest.raises(errors.RefusedError, match="more than the"):
        config_map_of(tmp_path, job="digits", namespace="team")


@pytest.mark.parametrize("target", ["secret", "absent", "folder", "train.py"])
def test_a_link_in_the_folder_is_refused_and_named(tmp_path: Path, target: str) -> None:
    """A cloned repository may have links, such as one to ~/.aws/credentials."""
    (tmp_path / "secret").write_text("aws_secret_access_key = x")
    (tmp_path / "folder").mkdir()
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    (code / "settings.py").symlink_to(code / target if target == "train.py" else tmp_path / target)
    with pytest.raises(errors.RefusedError, match=r"settings\.py is a link"):
        config_map_of(code, job="digits", namespace="team")


def test_the_named_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    (tmp_path / "link").symlink_to(tmp_path / "code")
    assert config_map_of(tmp_path / "link", job="digits", namespace="team")["data"] == {"train.py": "print(1)\n"}


def test_a_pipe_in_the_folder_is_refused_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    os.mkfifo(tmp_path / "queue")
    with pytest.raises(errors.RefusedError, match="queue is a pipe"):
        config_map_of(tmp_path, job="digits", namespace="team")


@pytest.mark.parametrize("kind", ["link", "pipe", "nothing"])
def test_a_file_that_changes_into_something_else_meanwhile_is_not_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, code = tmp_path / "secret", tmp_path / "code"
    secret.write_text("aws_secret_access_key = x")
    code.mkdir()
    file = code / "train.py"
    file.write_text("print(1)\n")
    stat = os.stat

    def stat_and_swap(path: Any, **options: Any) -> os.stat_result:
        result = stat(path, **options)
        if path == "train.py":
            file.unlink()
            if kind == "link":
                file.symlink_to(secret)
            elif kind == "pipe":
                os.mkfifo(file)
        return result

    monkeypatch.setattr(os, "stat", stat_and_swap)
    with pytest.raises(errors.RefusedError, match=r"train\.py"):
        config_map_of(code, job="digits", namespace="team")
