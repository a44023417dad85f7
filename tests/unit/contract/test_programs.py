"""Why the system does not start a program, with real files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from muster_contract.programs import why_not_started
from tests.support.texts import absent


@pytest.mark.parametrize(
    ("content", "mode", "named"),
    [
        pytest.param(b"#!/bin/bash\r\nset -e\r\n", 0o755, ["'/bin/bash\\r'", "LF"], id="lines of Windows"),
        pytest.param(b"#!/no/such/python -u\n", 0o755, ["'/no/such/python -u'", "does not exist"], id="no interpreter"),
        pytest.param(b"#!/bin/sh\n", 0o644, ["may not be executed", "chmod +x"], id="no permission"),
        pytest.param(b"\x00\x01\x02", 0o755, ["no program for this machine", "#!/bin/sh"], id="no program"),
        pytest.param(None, 0o755, ["No such file or directory"], id="no file"),
    ],
)
def test_a_program_that_does_not_start_is_explained(tmp_path: Path, content: bytes | None, mode: int, named: list[str]) -> None:
    if content is not None:
        (tmp_path / "run.sh").write_bytes(content)
        (tmp_path / "run.sh").chmod(mode)
    with pytest.raises(OSError, match=r"run\.sh") as raised:
        subprocess.run(["./run.sh"], cwd=tmp_path, check=False)
    assert absent(why_not_started("./run.sh", raised.value, folder=tmp_path), *named) == []
