"""The node image for machines that cannot pull kind's own. It consists of Debian's packages, programs built from Go modules, and kind's own
start-up files.

Its name has a hash of everything that it is made from. So a changed recipe makes a new image, and an unchanged one is used again.
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .archive import Image, write_archive
from .engine import Engine
from .machine import debian_mirror
from .places import FOLDER, Places
from .process import run
from .programs import KUBERNETES, SOURCES, Programs
from .progress import step

REPOSITORY = "muster-node"
SUITE = "bookworm"  # the last one whose systemd starts on cgroup v1 and v2 by default
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "containerd", "runc", "containernetworking-plugins", "iptables", "iproute2", "ethtool"),
    *("socat", "conntrack", "kmod", "procps", "mount", "util-linux", "ca-certificates", "jq"),
)
PROGRAMS = (
    *("kubeadm", "kubectl", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"),
    *("etcd", "coredns", "pause"),
)
KIND_MODULE = "sigs.k8s.io/kind"
SPARE = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/lib/apt/lists", "var/cache/apt")
IPTABLES = ("iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore")


def name() -> str:
    """The name of the image, which depends only on its recipe."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    sources = {source.folder for source in SOURCES if set(PROGRAMS) & set(source.packages)}
    for folder in (FOLDER / "node", *sorted(FOLDER / "go" / folder for folder in sources | {"kind"})):
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(file.read_bytes())
    return f"{REPOSITORY}:{KUBERNETES}-{digest.hexdigest()[:12]}"


def build(places: Places, engine: Engine, programs: Programs, *, debian: Path) -> str:
    """Imports the image into the engine from a tree of `debian_tree`, and returns its name. Changes the tree.

    Raises:
        ClusterError: a step failed. The message names the file with its output.
    """
    image = name()
    with step("putting Kubernetes into the node image", "about 1 min"):
        _add_kind(debian, programs.module_folder("kind", KIND_MODULE) / "images" / "base" / "files")
        _add_kubernetes(debian, programs)
        with _folder(places, "images-") as scratch:
            _preload(debian, _control_plane_images(debian, programs, scratch), log=places.logs / "preload.log")
        script = 'tar -C "$1" --numeric-owner -c . | docker import -c "ENV container=docker" -c "$2" - "$3"'
        entrypoint = 'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]'
        run(["bash", "-euo", "pipefail", "-c", script, "--", debian, entrypoint, image], 900, env=engine.environment)
    return image


@contextmanager
def debian_tree(places: Places) -> Iterator[Path]:
    """A folder with Debian and the packages of a node, from the mirror of this machine. It is removed at the end.

    Raises:
        ClusterError: no mirror is configured, or debootstrap failed.
    """
    with _folder(places, "tree-") as tree:
        with step(f"Debian {SUITE} for the node image", "about 1 min"):
            packages = places.cache / "debian-packages"
            packages.mkdir(exist_ok=True)
            options = ["--variant=minbase", f"--cache-dir={packages}", f"--include={','.join(PACKAGES)}"]
            run(["debootstrap", *options, SUITE, tree, debian_mirror()], 1800, log=places.logs / "debootstrap.log")
            for spare in SPARE:
                shutil.rmtree(tree / spare, ignore_errors=True)
        yield tree


def remove_leftovers(places: Places) -> None:
    """Removes the trees that an interrupted build left."""
    for prefix in ("tree-", "images-"):
        for tree in places.cache.glob(f"{prefix}*"):
            shutil.rmtree(tree)


def _add_kind(tree: Path, files: Path) -> None:
    """Installs kind's own start-up files and only the units that a node needs (after kind's images/base/Dockerfile)."""
    run(["cp", "-r", "--no-preserve=mode", f"{files}/.", tree], 60)  # the module cache is read-only
    for script in [tree / "usr/local/bin/entrypoint", *(tree / "kind/bin").glob("*.sh")]:
        script.chmod(0o755)
    units = tree / "lib/systemd/system"
    unwanted = ("multi-user.target.wants/*", "local-fs.target.wants/*", "basic.target.wants/*", "sockets.target.wants/*udev*")
    for pattern in (*unwanted, "sockets.target.wants/*initctl*", "sysinit.target.wants/systemd-tmpfiles-setup.service"):
        _unlink(units.glob(pattern))
    enabled = tree / "etc/systemd/system"
    _unlink(enabled.glob("*.wants/*"))
    (enabled / "systemd-binfmt.service").symlink_to("/dev/null")
    journal = tree / "etc/systemd/journald.conf"
    journal.write_text(journal.read_text() + "ReadKMsg=no\n")
    for unit in ("guard.service", "pod-network.service"):
        shutil.copyfile(FOLDER / "node" / unit, enabled / unit)
    (enabled / "multi-user.target.wants").mkdir(exist_ok=True)
    for unit in ("kubelet", "containerd", "undo-mount-hacks", "guard", "pod-network"):
        (enabled / "multi-user.target.wants" / f"{unit}.service").symlink_to(f"/etc/systemd/system/{unit}.service")
    for program in ("crictl", "pod-network"):
        shutil.copy(FOLDER / "node" / program, tree / "usr/local/bin" / program)
    for folder in ("etc/kubernetes/manifests", "etc/cni/net.d", "opt/cni", "kind/manifests"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(FOLDER / "node/default-cni.yaml", tree / "kind/manifests/default-cni.yaml")
    (tree / "opt/cni/bin").symlink_to("/usr/lib/cni")
    _unlink((tree / "etc/cni/net.d").glob("*"))
    for program in ("containerd", "ctr", "containerd-shim-runc-v2"):
        (tree / "usr/local/bin" / program).symlink_to(f"/usr/bin/{program}")


def _add_kubernetes(tree: Path, programs: Programs) -> None:
    for program in ("kubeadm", "kubectl", "kubelet"):
        shutil.copy(programs.path(program), tree / "usr/bin" / program)
    (tree / "kind/version").write_text(KUBERNETES)
    config = tree / "etc/containerd/config.toml"
    text = re.sub(r'sandbox_image = ".*"', f'sandbox_image = "{_image_names(programs)["pause"]}"', config.read_text())
    config.write_text(text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true"))  # lowering needs CAP_SYS_RESOURCE
    spec = json.loads(run(["chroot", tree, "ctr", "oci", "spec"], 60))
    spec["hooks"] = {"createContainer": [{"path": "/kind/bin/mount-product-files.sh"}]}
    spec["process"].pop("rlimits", None)
    (tree / "etc/containerd/cri-base.json").write_text(json.dumps(spec))


def _image_names(programs: Programs) -> dict[str, str]:
    """The control plane's images with the names that kubeadm uses, by their last component."""
    names = run([programs.path("kubeadm"), "config", "images", "list", "--kubernetes-version", KUBERNETES], 60).split()
    return {each.rpartition("/")[2].partition(":")[0]: each for each in names}


def _control_plane_images(tree: Path, programs: Programs, scratch: Path) -> Path:
    images = []
    for program, image in _image_names(programs).items():
        root = scratch / program
        (root / "usr/local/bin").mkdir(parents=True)
        (root / "tmp").mkdir()
        shutil.copy(programs.path(program), root / "usr/local/bin" / program)
        if program == "kube-proxy":
            _add_iptables(tree, root)
        images.append(Image(image, root, f"/usr/local/bin/{program}"))
    archive = scratch / "images.tar"
    write_archive(archive, images)
    return archive


def _add_iptables(tree: Path, root: Path) -> None:
    """Installs iptables with every extension and its libraries, because rules whose extension cannot be loaded are silently omitted."""
    for link, target in (("lib", "usr/lib"), ("lib64", "usr/lib64"), ("sbin", "usr/sbin"), ("bin", "usr/bin")):
        (root / target).mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(target)
    (root / "run").mkdir()
    extensions = next((tree / "usr/lib").glob("*/xtables")).relative_to(tree)
    shutil.copytree(tree / extensions, root / extensions)
    shutil.copy(tree / "usr/sbin/xtables-nft-multi", root / "usr/sbin")
    for program in IPTABLES:
        (root / "usr/sbin" / program).symlink_to("xtables-nft-multi")
    listed = run(["chroot", tree, "sh", "-c", f"ldd /usr/sbin/xtables-nft-multi /{extensions}/*.so"], 60)
    for library in sorted(set(re.findall(r"(/(?:usr/)?lib\S+) \(0x", listed))):
        real = run(["chroot", tree, "readlink", "-f", library], 60).strip()
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree / real.lstrip("/"), target)
        target.chmod(0o755)


def _preload(tree: Path, archive: Path, *, log: Path) -> None:
    folder = tree / "preload"
    folder.mkdir()
    shutil.move(archive, folder / "images.tar")
    run(["unshare", "--mount", "--pid", "--fork", "--kill-child", FOLDER / "node/preload.sh", tree], 600, log=log)
    shutil.rmtree(folder)


def _unlink(paths: Iterator[Path]) -> None:
    for path in paths:
        path.unlink()


@contextmanager
def _folder(places: Places, prefix: str) -> Iterator[Path]:
    places.cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=places.cache))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
