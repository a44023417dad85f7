"""The cache of inputs, in a folder that other pods can write to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster_trainer.inputs.cache import COMPLETE, Entry


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text("{}"),
        lambda path: path.write_text('{"revision": "c1", "files": [[5, 1]]}'),
    ],
)
def test_an_input_with_an_odd_marker_is_not_complete(make: Callable[[Path], object], tmp_path: Path) -> None:
    entry = Entry(tmp_path, "key")
    entry.folder.mkdir()
    make(entry.folder / COMPLETE)
    assert entry.complete() is None


def test_the_lock_is_no_link_to_another_file(tmp_path: Path) -> None:
    other, entry = tmp_path / "other", Entry(tmp_path, "key")
    other.write_text("content")
    (tmp_path / "key.lock").symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"), entry.locked(lambda: None):
        pass
    assert other.read_text() == "content"
