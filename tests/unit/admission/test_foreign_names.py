"""Fields of other tools get a message with the field of Muster."""

import re

import pytest

from muster.admission.definitions import schema
from muster.admission.foreign_names import WRITE, instead_of
from muster.admission.structural import part_of


def test_what_to_write_is_a_field_of_a_job() -> None:
    whole = schema()
    for text in set(WRITE.values()):
        paths = re.findall(r"\bspec\.[A-Za-z.]+[A-Za-z]", text)
        assert paths, text
        for path in paths:
            names = ["*" if name == "worker" else name for name in path.split(".")]
            part_of(whole, names[: names.index("template") + 1] if "template" in names else names)


@pytest.mark.parametrize(
    "name", ["pvc", "s3", "env", "command", "gpus", "nprocPerNode", "numNodes", "runPolicy", "pytorchReplicaSpecs", "setup"]
)
def test_fields_of_other_tools_are_known(name: str) -> None:
    assert instead_of(("spec", name))


def test_what_to_write_names_the_role_of_the_field() -> None:
    assert "spec.roles.ps.resources" in str(instead_of(("spec", "roles", "ps", "gpus")))
    assert instead_of(("spec", "unknown")) is None
