"""The packages of the images: locks that are current and have hashes, and packages over a base image."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "deploy" / "locks").glob("*.txt"))


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    yield
    for name in ("lock", "requirements"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("deploy")
def test_the_locks_have_the_requirements_of_pyproject() -> None:
    import lock  # type: ignore[import-not-found]  # the fixture puts deploy/ on the path

    assert lock.main(["--check"]) == 0


@pytest.mark.usefixtures("deploy")
@pytest.mark.parametrize("wanted", ["aiohttp>=99", "unheard-of>=1"])
def test_a_lock_that_lacks_a_requirement_is_stale(wanted: str) -> None:
    import lock

    [first, *_] = lock.faults(ROOT / "deploy" / "locks" / "operator.txt", ["jinja2>=3.1,<4", wanted])
    assert wanted in first


@pytest.mark.parametrize("file", LOCKS, ids=[file.stem for file in LOCKS])
def test_every_package_of_a_lock_has_a_version_and_a_hash_and_no_address(file: Path) -> None:
    text = file.read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.partition("\n")[2])
    assert entries
    assert [entry for entry in entries if "==" not in entry.splitlines()[0] or "--hash=sha256:" not in entry] == []


def printed(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "deploy/requirements.py", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_error_for_a_missing_lock_names_the_option_to_build_without() -> None:
    assert printed("trainer", "tensorflow", "tensorflow-cpu").stdout.startswith("--require-hashes\n")
    refused = printed("trainer", "tensorflow", "tensorflow-rocm")
    assert refused.returncode
    assert "LOCKED=false" in refused.stderr
    assert "tensorflow-rocm>=" in printed("trainer", "tensorflow", "tensorflow-rocm", "--ranges").stdout


@pytest.mark.parametrize(("framework", "package"), [("pytorch", "torch"), ("tensorflow", "tensorflow[and-cuda]"), ("jax", "jax[cuda12]")])
def test_a_trainer_gets_the_gpu_build_unless_the_base_image_has_a_framework(framework: str, package: str) -> None:
    assert f"{package.partition('[')[0]}==" in printed("trainer", framework, "").stdout
    assert f"\n{package}>=" in printed("trainer", framework, "", "--ranges").stdout
    assert f"\n{package.partition('[')[0]}" not in printed("trainer", framework, "base", "--ranges").stdout


@pytest.mark.parametrize(("engine", "package"), [("mpi", "mpi4py"), ("ray", "ray[default,train]")])
def test_the_image_of_an_engine_over_a_base_with_torch_gets_the_engine_and_no_torch(engine: str, package: str) -> None:
    ranges = printed("trainer", engine, "base", "--ranges").stdout
    assert f"\n{package}>=" in ranges
    assert "torch" not in ranges
    assert f"\n{package.partition('[')[0]}==" in printed("trainer", engine, "base").stdout


@pytest.mark.parametrize("framework", ["", "mxnet", "s3"])
def test_an_unknown_framework_is_refused_with_all_names(framework: str) -> None:
    for ranges in ((), ("--ranges",)):
        refused = printed("trainer", framework, "", *ranges)
        assert refused.returncode
        assert "pytorch, tensorflow, jax" in refused.stderr


def wheel(folder: Path, name: str, version: str, *needs: str) -> str:
    """Writes an empty package, and returns its hash."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs), ""]
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text.encode())}"
        for path, text in files.items()
    ]
    file = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_only_missing_packages_are_installed_over_a_base_image(tmp_path: Path) -> None:
    index, base = tmp_path / "index", tmp_path / "base"
    index.mkdir()
    hashes = {f"{name}=={version}": wheel(index, name, version) for name, version in (("kept", "1.0"), ("kept", "2.0"), ("old", "1.0"))}
    hashes |= {"old==2.0": wheel(index, "old", "2.0"), "new==2.0": wheel(index, "new", "2.0", "old==2.0")}
    venv.create(tmp_path / "image", with_pip=True)
    python = tmp_path / "image" / "bin" / "python"
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(python), *words], env=environment, capture_output=True, text=True, timeout=300, check=False)

    assert run("-m", "pip", "install", "--target", str(base), "kept==1.0", "old==1.0").returncode == 0
    [packages] = (tmp_path / "image" / "lib").glob("python3*/site-packages")
    (packages / "base.pth").write_text(str(base))
    lock, ranges = tmp_path / "lock.txt", tmp_path / "ranges.txt"
    ranges.write_text("kept>=1\nnew>=1\n")
    install = str(ROOT / "deploy" / "install_over_base.py")

    entries = {entry: f"{entry} \\\n    --hash=sha256:{hashes[entry]}\n" for entry in ("kept==2.0", "new==2.0", "old==2.0")}
    lock.write_text("--require-hashes\n" + "".join(entries.values()).replace(hashes["new==2.0"], "0" * 64))
    refused = run(install, str(lock), str(ranges))
    assert refused.returncode
    assert "DO NOT MATCH" in refused.stderr
    lock.write_text("--require-hashes\n" + "".join(entries.values()))
    done = run(install, str(lock), str(ranges))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in packages.glob("*-*.dist-info") if path.name[:3] in ("kep", "new", "old")) == [
        "new-2.0.dist-info",
        "old-2.0.dist-info",
    ]
