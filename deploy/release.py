"""Builds the files of a release into dist/: `deploy/release.py VERSION [PART...]`. Without parts it empties dist/, and builds all but the
images.

package             the wheel and the source archive
chart               the Helm chart, which `helm install` and `helm push` take
manifests           deploy/install.yaml
plugin-OS-ARCH      the kubectl plug-in: one zip application (shiv) with the client and its locked requirements, for every supported Python
sbom                what `make sbom` writes
images              the container images as OCI archives; `--image` names some

Each run writes krew-muster.yaml, the manifest of the plug-in for krew, and SHA256SUMS anew. With `--key` it signs SHA256SUMS. The times in
all files are that of the commit, so two runs write the same bytes, except for images.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

sys.path.insert(0, str(Path(__file__).parent))
import generate
from requirements import LOCKS

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
SEMANTIC = re.compile(r"\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "linux-amd64": "x86_64-manylinux_2_28",
    "linux-arm64": "aarch64-manylinux_2_28",
    "darwin-amd64": "x86_64-apple-darwin",
    "darwin-arm64": "aarch64-apple-darwin",
}
"""The platforms of the plug-in in the words of krew, and in those of uv."""
CHECK_PYTHON = f"""\
import sys
python = ".".join(str(number) for number in sys.version_info[:2])
if python not in {PYTHONS}:
    sys.exit("kubectl-muster needs Python {PYTHONS[0]} to {PYTHONS[-1]}, and python3 is " + python + ": put another one first on the PATH")
"""
"""What the plug-in does first. It runs with every Python 3."""
SHIV = "shiv>=1.0.8,<2"
PASSWORD = "SIGNING_PASSWORD"
SECONDS = 600.0
"""The longest time that a program may take. A build of an image, or of many files, may take SECONDS_OF_MANY."""
SECONDS_OF_MANY = 7200.0


class ReleaseError(Exception):
    """A release that cannot be made. The message is one sentence that says what to do."""


@dataclass(frozen=True)
class Release:
    """`epoch` is the time of the commit, in seconds since 1970. `url` is the address of the folder that will have the files."""

    version: str
    commit: str
    epoch: int
    url: str

    @property
    def wheel(self) -> Path:
        found = list(DIST.glob("muster_training-*.whl"))
        if len(found) != 1:
            raise ReleaseError("dist/ has no wheel for the plug-in: name the part `package` too")
        return found[0]


def main(arguments: Sequence[str]) -> int:
    """Builds the parts. Returns 1, after one sentence, if the release cannot be made."""
    options = _parser().parse_intermixed_args(arguments)
    os.umask(0o022)  # the modes of files get into archives
    try:
        release = _checked(options.version, options.url)
        key = _key(options.key) if options.key else None
        if not options.parts:
            shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir(exist_ok=True)
        for part in [*options.parts] or ["package", "chart", "manifests", *(f"plugin-{each}" for each in PLATFORMS), "sbom"]:
            print(f"building: {part}", file=sys.stderr)
            _build(part, release, options.image)
        _write_krew_manifest(release)
        _write_sums()
        if key:
            _sign(key)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deploy/release.py", description="Builds the files of a release into dist/.")
    parser.add_argument("version", help="the version of pyproject.toml")
    parts = ["package", "chart", "manifests", *(f"plugin-{each}" for each in PLATFORMS), "sbom", "images"]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)} (default: all but images)")
    parser.add_argument("--url", default="", help="address of the folder that will have the files, for the manifest of krew")
    parser.add_argument("--key", default="", help=f"PEM file with an EC P-256 private key that signs; its password is in {PASSWORD}")
    parser.add_argument("--image", action="append", choices=list(_targets()), help="an image to build (default: all); may be repeated")
    return parser


def _checked(version: str, url: str) -> Release:
    """The release of this checkout. Raises ReleaseError if the checkout is not that version, or has changes."""
    if not SEMANTIC.fullmatch(version):
        raise ReleaseError(f"VERSION={version}: write a semantic version, such as VERSION={generate.VERSION} or VERSION=1.0.0-rc.1")
    if version != generate.VERSION:
        raise ReleaseError(f"VERSION={version}, but pyproject.toml has {generate.VERSION}: change it there, then run `make manifests`")
    stale = [str(path.relative_to(ROOT)) for path, text in generate.versioned() if path.read_text() != text]
    if f'app.kubernetes.io/version: "{version}"' not in (ROOT / "deploy" / "install.yaml").read_text():
        stale.append("deploy/install.yaml")
    if stale:
        raise ReleaseError(f"{', '.join(stale)}: not of version {version}; run `make manifests`, and commit the result")
    if not re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no section `## {version}`: write what users can do with it")
    if changes := _run("git", "status", "--porcelain").splitlines():
        raise ReleaseError(f"the checkout has changes ({changes[0][3:]}{', ...' if len(changes) > 1 else ''}): commit or remove them")
    commit, epoch = _run("git", "log", "-1", "--format=%H %ct").split()
    return Release(version, commit, int(epoch), (url or f"https://muster.dev/releases/v{version}").rstrip("/"))


def _build(part: str, release: Release, images: Iterable[str] | None) -> None:
    platform = part.removeprefix("plugin-")
    if part == "package":
        _build_package(release)
    elif part == "chart":
        chart = generate.CHART
        files = _run("git", "ls-files", "-z", str(chart)).rstrip("\0").split("\0")
        members = {f"muster/{(ROOT / each).relative_to(chart)}": (ROOT / each).read_bytes() for each in files}
        _archive(DIST / f"muster-{release.version}.tgz", members, release.epoch)
    elif part == "manifests":
        shutil.copyfile(ROOT / "deploy" / "install.yaml", DIST / "install.yaml")
    elif part == "sbom":
        _run("make", "sbom", seconds=SECONDS_OF_MANY)
        for lock in LOCKS:
            shutil.copyfile(ROOT / "build" / "sbom" / f"{lock}.cdx.json", DIST / f"muster-{lock}-{release.version}.cdx.json")
    elif part == "images":
        for name in images or _targets():
            _build_image(name, release)
    elif platform in PLATFORMS:
        _build_plugin(platform, release)
    else:
        raise ReleaseError(f"no part of a release is called {part}: `deploy/release.py --help` lists them")


def _build_package(release: Release) -> None:
    lock = ROOT / "deploy" / "locks" / "build.txt"
    with tempfile.TemporaryDirectory() as name:
        _uv("build", "--quiet", "--build-constraints", str(lock), "--require-hashes", "--out-dir", name, str(ROOT), epoch=release.epoch)
        for file in Path(name).glob("muster_training-*"):
            shutil.copyfile(file, DIST / file.name)


def _build_plugin(platform: str, release: Release) -> None:
    """Compiled modules have names with the version of Python, so the packages of all versions fit into one folder."""
    lock = str(ROOT / "deploy" / "locks" / "client.txt")
    with tempfile.TemporaryDirectory() as name:
        packages, plugin = Path(name) / "packages", Path(name) / "kubectl-muster"
        for python in PYTHONS:
            of_python = Path(name) / python
            where = ("--target", str(of_python), "--python-platform", PLATFORMS[platform], "--python-version", python)
            for what in (("--require-hashes", "-r", lock), (str(release.wheel),)):
                _uv("pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", *where, *what)
            _merge(of_python, packages)
        check = Path(name) / "check_python.py"
        check.write_text(CHECK_PYTHON)
        options = (
            "--site-packages",
            str(packages),
            "--preamble",
            str(check),
            "--entry-point",
            "muster.cli.main:main",
            "--compressed",
            "--output-file",
            str(plugin),
        )
        _uv("tool", "run", "--quiet", "--from", SHIV, "shiv", "--python", "/usr/bin/env python3", *options, epoch=release.epoch)
        members = {"kubectl-muster": plugin.read_bytes(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
    _archive(_plugin_archive(platform, release), members, release.epoch)


def _merge(source: Path, target: Path) -> None:
    """Copies what a zip application needs. Raises ReleaseError if a module differs between versions of Python."""
    for file in sorted(each for each in source.rglob("*") if each.is_file()):
        path = file.relative_to(source)
        metadata = path.parts[0].endswith(".dist-info")
        if path.parts[0] == "bin" or path.name == ".lock" or (metadata and path.name in ("RECORD", "direct_url.json", "uv_cache.json")):
            continue
        copy = target / path
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        elif not metadata and copy.read_bytes() != file.read_bytes():
            raise ReleaseError(f"{path} differs between versions of Python, so one plug-in cannot serve all of {', '.join(PYTHONS)}")


def _targets() -> dict[str, list[str]]:
    """The images, with the options that build them."""
    frameworks = dict.fromkeys(of[1] for of in LOCKS.values() if of[0] == "trainer")
    trainers = {f"trainer-{each}": ["--target", "trainer", "--build-arg", f"FRAMEWORK={each}"] for each in frameworks}
    return {"operator": ["--target", "operator"], "ui": ["--target", "ui"], **trainers}


def _build_image(name: str, release: Release) -> None:
    """`docker save` writes the OCI layout from Docker 25 on. With an older engine, skopeo makes it. The annotation gives the image its name
    where containerd or Docker loads the archive."""
    image = f"muster-{name}:{release.version}"
    labels = {"VERSION": release.version, "REVISION": release.commit, "CREATED": datetime.fromtimestamp(release.epoch, UTC).isoformat()}
    bases = {key: os.environ[key] for key in ("BASE_IMAGE", "TRAINER_BASE_IMAGE", "DISTRIBUTION") if os.environ.get(key)}
    arguments = [word for key, value in {**labels, **bases}.items() for word in ("--build-arg", f"{key}={value}")]
    architecture = _run("docker", "version", "--format", "{{.Server.Arch}}").strip()
    _run("docker", "build", "--quiet", *_targets()[name], *arguments, "--tag", image, str(ROOT), seconds=SECONDS_OF_MANY)
    with tempfile.TemporaryDirectory(dir=DIST) as folder:
        saved, layout = Path(folder) / "saved.tar", Path(folder) / "layout"
        _run("docker", "save", "--output", str(saved), image, seconds=SECONDS_OF_MANY)
        with tarfile.open(saved) as archive:
            if "oci-layout" in archive.getnames():
                archive.extractall(layout, filter="data")
        if not layout.exists():
            _run("skopeo", "copy", "--quiet", f"docker-archive:{saved}", f"oci:{layout}:{release.version}", seconds=SECONDS_OF_MANY)
        saved.unlink()
        for docker_only in ("manifest.json", "repositories"):
            (layout / docker_only).unlink(missing_ok=True)
        index = json.loads((layout / "index.json").read_text())
        names = {"io.containerd.image.name": f"docker.io/library/{image}", "org.opencontainers.image.ref.name": release.version}
        index["manifests"][0].setdefault("annotations", {}).update(names)
        (layout / "index.json").write_text(json.dumps(index))
        with tarfile.open(DIST / f"muster-{name}-{release.version}-linux-{architecture}.oci.tar", "w") as archive:
            for file in sorted(layout.rglob("*")):
                archive.add(file, file.relative_to(layout), recursive=False)


def _plugin_archive(platform: str, release: Release) -> Path:
    return DIST / f"kubectl-muster-{release.version}-{platform}.tar.gz"


def _write_krew_manifest(release: Release) -> None:
    archives = {each: file for each in PLATFORMS if (file := _plugin_archive(each, release)).exists()}
    if not archives:
        return
    platforms = [
        {
            "selector": {"matchLabels": dict(zip(("os", "arch"), platform.split("-"), strict=True))},
            "uri": f"{release.url}/{file.name}",
            "sha256": _digest(file),
            "bin": "kubectl-muster",
        }
        for platform, file in archives.items()
    ]
    spec = {
        "version": f"v{release.version}",
        "homepage": "https://muster.dev",
        "shortDescription": "Submits, watches and explains distributed training jobs",
        "description": "Commands for TrainingJobs of Muster: submit, get, watch, logs of all ranks, explain,\n"
        "suspend, resume, restart, scale, delete and debug-dump.\n",
        "caveats": f"Needs Python {PYTHONS[0]} to {PYTHONS[-1]} on the PATH as python3.\n",
        "platforms": platforms,
    }
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "muster"},
        "spec": spec,
    }
    (DIST / "krew-muster.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))


def _write_sums() -> None:
    files = sorted(each for each in DIST.iterdir() if each.is_file() and each.name not in (SUMS, SIGNATURE))
    (DIST / SUMS).write_text("".join(f"{_digest(each)}  {each.name}\n" for each in files))
    (DIST / SIGNATURE).unlink(missing_ok=True)


def _key(path: str) -> ec.EllipticCurvePrivateKey:
    password = os.environ.get(PASSWORD, "").encode() or None
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), password)
    except (OSError, ValueError, TypeError) as error:
        raise ReleaseError(f"KEY={path}: no private key in PEM that {PASSWORD} opens: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ReleaseError(f"KEY={path}: write a key of the curve P-256, as `openssl ecparam -name prime256v1 -genkey` makes it")
    return key


def _sign(key: ec.EllipticCurvePrivateKey) -> None:
    """ECDSA over SHA-256 in base64, which `cosign verify-blob --key` and `openssl dgst -verify` read."""
    signature = key.sign((DIST / SUMS).read_bytes(), ec.ECDSA(hashes.SHA256()))
    (DIST / SIGNATURE).write_text(b64encode(signature).decode() + "\n")


def _archive(path: Path, members: Mapping[str, bytes], epoch: int) -> None:
    """A compressed tar file. Its bytes depend on the arguments only."""
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, content in sorted(members.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(entry, io.BytesIO(content))


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _uv(*arguments: str, epoch: int = 0) -> None:
    _run(str(Path(sys.executable).with_name("uv")), *arguments, env={"SOURCE_DATE_EPOCH": str(epoch)} if epoch else {})


def _run(*command: str, seconds: float = SECONDS, env: Mapping[str, str] | None = None) -> str:
    """The standard output of a program. Raises ReleaseError if it is missing or fails."""
    try:
        environment = {**os.environ, **(env or {})}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise ReleaseError(f"{Path(command[0]).name} is not on the PATH: install it") from None
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"{Path(command[0]).name} {command[1]} took longer than {seconds:.0f} s") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise ReleaseError(f"{Path(command[0]).name} {command[1]} failed: {' '.join(last) or f'exit code {done.returncode}'}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
