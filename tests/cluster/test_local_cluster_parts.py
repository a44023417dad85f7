"""the parts of local_cluster that need neither root nor a cluster."""

import gzip
import hashlib
import io
import json
import tarfile
import threading
from pathlib import Path

import pytest

from local_cluster import Cluster, ClusterError, CommandFailedError, Places, node_image, programs
from local_cluster.archive import Image, write_archive
from local_cluster.create import DEFAULT_WORKERS, _config, down
from local_cluster.firewall import without_docker
from local_cluster.machine import debian_mirror
from local_cluster.process import run

AFTER_DOCKERD = [
    *["*filter", ":INPUT ACCEPT [0:0]", ":FORWARD DROP [0:0]", ":DOCKER - [0:0]", ":DOCKER-USER - [0:0]"],
    *["-A INPUT -s 192.0.2.1/32 -j DROP", "-A FORWARD -j DOCKER-USER", "-A FORWARD -o docker0 -j DOCKER"],
    *["-A DOCKER-USER -i muster0 ! -o muster0 -j REJECT", "COMMIT"],
    *["*nat", ":POSTROUTING ACCEPT [0:0]", ":DOCKER - [0:0]", "-A POSTROUTING -s 172.30.0.0/24 ! -o muster0 -j MASQUERADE", "COMMIT"],
]


def test_what_dockerd_added_to_the_packet_rules_goes_and_what_others_added_stays() -> None:
    assert without_docker(AFTER_DOCKERD, []) == [
        *["*filter", ":INPUT ACCEPT [0:0]", ":FORWARD ACCEPT [0:0]", "-A INPUT -s 192.0.2.1/32 -j DROP", "COMMIT"],
        *["*nat", ":POSTROUTING ACCEPT [0:0]", "COMMIT"],
    ]


def test_rules_of_an_engine_that_was_there_before_stay_and_the_forward_policy_is_that_of_before() -> None:
    before = ["*filter", ":FORWARD DROP [7:9]", ":DOCKER - [0:0]", "-A FORWARD -o docker0 -j DOCKER", "COMMIT"]
    rules = without_docker(AFTER_DOCKERD, before)
    assert ":FORWARD DROP [7:9]" in rules
    assert "-A FORWARD -o docker0 -j DOCKER" in rules
    assert "-A FORWARD -j DOCKER-USER" not in rules


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("sources.list", "deb http://mirror.test/debian bookworm main"),
        ("sources.list.d/a.list", "deb [signed-by=/x.gpg] http://mirror.test/debian/ bookworm main"),
        ("sources.list.d/a.sources", "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm"),
    ],
)
def test_the_debian_mirror_is_the_one_of_this_machine_in_either_notation(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "other.list").write_text("deb http://elsewhere.test/apt stable main\n")
    (tmp_path / file).write_text(f"# deb http://old.test/debian bookworm main\n{line}\n")
    assert debian_mirror(tmp_path) == "http://mirror.test/debian"


def test_a_cluster_that_tests_are_breaking_is_neither_replaced_nor_removed(tmp_path: Path) -> None:
    places = Places(tmp_path)
    with places.in_use(), pytest.raises(ClusterError, match="tests are running on the cluster"):
        down(places)
    with places.in_use():  # free again
        pass


def test_the_workers_of_one_run_of_tests_use_the_cluster_together_and_no_other_run_does(tmp_path: Path) -> None:
    places = Places(tmp_path)
    with places.in_use("one run"):
        with places.in_use("one run"):
            pass
        for by in ("another run", ""):
            with pytest.raises(ClusterError, match="tests are running on the cluster"), places.in_use(by):
                pass
        with pytest.raises(ClusterError, match="tests are running on the cluster"):
            down(places)
    with places.in_use("another run"):
        pass


def test_a_machine_without_a_debian_mirror_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="names no Debian mirror: add one"):
        debian_mirror(tmp_path)


def test_an_image_archive_names_its_layer_by_the_hash_of_its_content(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "program").write_text("hello")
    write_archive(tmp_path / "images.tar", [Image("some/image:1", root, "/program")])
    with tarfile.open(tmp_path / "images.tar") as archive:
        entry = json.load(archive.extractfile("manifest.json"))[0]  # type: ignore[arg-type]
        config = json.load(archive.extractfile(entry["Config"]))  # type: ignore[arg-type]
        layer = gzip.decompress(archive.extractfile(entry["Layers"][0]).read())  # type: ignore[union-attr]
    assert entry["RepoTags"] == ["some/image:1"]
    assert config["config"]["Entrypoint"] == ["/program"]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        assert files.extractfile("./program").read() == b"hello"  # type: ignore[union-attr]
        assert {entry.uid for entry in files} == {0}


def test_the_node_image_has_another_name_when_its_recipe_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("node", "go"):
        (tmp_path / folder).mkdir()
    (tmp_path / "node" / "crictl").write_text("one")
    monkeypatch.setattr(node_image, "FOLDER", tmp_path)
    first = node_image.name()
    assert node_image.name() == first
    (tmp_path / "node" / "crictl").write_text("two")
    assert node_image.name() != first


@pytest.mark.parametrize("workers", [1, DEFAULT_WORKERS, 5])
def test_every_node_of_the_cluster_sees_the_shared_folder(workers: int) -> None:
    nodes = json.loads(_config(workers, Path("/some/where")))["nodes"]
    assert [node["role"] for node in nodes] == ["control-plane"] + ["worker"] * workers
    assert all(node["extraMounts"] == [{"hostPath": "/some/where", "containerPath": "/shared"}] for node in nodes)


def test_a_second_call_on_the_same_cache_is_refused_and_told_why(tmp_path: Path) -> None:
    places = Places(tmp_path)
    with places.locked(), pytest.raises(ClusterError, match="another call of the harness is at work"), places.locked():
        pass


def test_a_program_that_two_calls_need_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places(tmp_path)
    second = threading.Thread(target=lambda: programs.Programs(places).ensure(["pause"]))
    built: list[str] = []

    def build(self: programs.Programs, source: programs.Source, names: list[str]) -> None:
        built.extend(names)
        if not second.ident:
            second.start()
            second.join(0.5)  # it ends at once, unless it waits
        for name in names:
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            self.path(name).touch()
            self._stamp(name).parent.mkdir(exist_ok=True)
            self._stamp(name).write_text(programs._key(source, name))

    monkeypatch.setattr(programs.Programs, "_build", build)
    monkeypatch.setattr(programs, "_require_go", lambda what: None)
    programs.Programs(places).ensure(["pause"])
    second.join(60)
    assert built == ["pause"]


def test_a_command_that_fails_says_its_termination() -> None:
    with pytest.raises(ClusterError, match=r"ended with 3\nno space"):
        run(["sh", "-c", "echo no space >&2; exit 3"], 10)


def test_a_command_that_hangs_is_ended_at_its_deadline() -> None:
    with pytest.raises(ClusterError, match="did not end within 0 s"):
        run(["sleep", "60"], 0.2)


def test_a_wait_goes_on_when_a_command_fails_and_names_the_last_failure(tmp_path: Path) -> None:
    cluster, looks = Cluster(Places(tmp_path), tmp_path / "kubeconfig"), iter([False, True])

    def holds_later() -> bool:
        if next(looks):
            return True
        raise CommandFailedError("kubectl ended with 1", "refused")

    def never_holds() -> bool:
        raise CommandFailedError("kubectl ended with 1", "refused")

    cluster.wait_until("it holds", holds_later, timeout=60)
    with pytest.raises(ClusterError, match=r"still not: it holds\nkubectl ended with 1\nrefused"):
        cluster.wait_until("it holds", never_holds, timeout=0)
