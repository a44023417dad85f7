"""The configuration file of the operator, and the messages for invalid files."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.operator.configuration import ConfigurationError, operator_pod, read_configuration


def read(folder: Path, text: str) -> object:
    file = folder / "operator.yaml"
    file.write_text(text)
    return read_configuration({"MUSTER_CONFIG": str(file)})


def test_the_defaults_apply_without_a_file() -> None:
    configuration = read_configuration({})
    assert (configuration.namespaces, configuration.workers) == ([], 32)
    images = configuration.all_images()
    assert set(images.trainers) == {"PyTorch", "TensorFlow", "Horovod", "JAX", "MPI", "Ray", "Spark"}
    assert images.supervisor.startswith("muster-operator:")


def test_the_file_can_name_another_controller(tmp_path: Path) -> None:
    assert read_configuration({}).controller == "muster.dev/operator"
    (tmp_path / "operator.yaml").write_text("controller: muster.dev/second")
    assert read_configuration({"MUSTER_CONFIG": str(tmp_path / "operator.yaml")}).controller == "muster.dev/second"


def test_images_in_the_file_override_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "operator.yaml").write_text("images: {PyTorch: mine}\nsupervisor: {image: ours, pullPolicy: Always}")
    images = read_configuration({"MUSTER_CONFIG": str(tmp_path / "operator.yaml")}).all_images()
    assert images.trainers["PyTorch"] == "mine"
    assert images.trainers["TensorFlow"]
    assert (images.supervisor, images.supervisor_pull_policy) == ("ours", "Always")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("workers: many", "workers"),
        ("unknown: 1", "unknown"),
        ("jobDefaults: {template: 3}", "jobDefaults.template"),
        ("capacity: {classes: {spot: {}}}", "capacity.classes.spot.nodeSelectorTerms"),
        (
            "capacity: {classes: {a: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}], pricePerNodeHour: free}}}",
            "capacity.classes.a.pricePerNodeHour",
        ),
        ("- a", ""),
        ("{", ""),
    ],
)
def test_the_message_names_the_wrong_field(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(ConfigurationError, match=r"operator\.yaml") as raised:
        read(tmp_path, text)
    assert where in str(raised.value)


def test_the_message_names_a_missing_file() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        read_configuration({"MUSTER_CONFIG": "/nowhere/operator.yaml"})


def test_the_operator_has_a_pod_name_outside_a_cluster() -> None:
    assert operator_pod({}).name
    assert operator_pod({"POD_NAME": "a", "POD_NAMESPACE": "b", "POD_IP": "10.0.0.1"}).address == "10.0.0.1"
