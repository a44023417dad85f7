"""A folder of code becomes a ConfigMap."""

from __future__ import annotations

from pathlib import Path

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
