"""The example manifests that other operators publish, through `muster convert`. They come as Go modules, whose hashes the Go checksum
database knows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from muster.admission.read import check_job
from muster.tools.convert.documents import CONVERTERS, convert
from muster.tools.convert.job import ConvertError

PUBLISHED = {
    "github.com/kubeflow/training-operator@v1.8.1": (15, {}),
    "github.com/kubeflow/mpi-operator@v0.6.0": (5, {}),
    "github.com/ray-project/kuberay/ray-operator@v1.5.0": (19, {"has no interactive mode": 2, "does not use one that runs": 1}),
    "github.com/kubeflow/spark-operator/v2@v2.4.0": (2, {"is Scala": 12, "is not YAML": 1}),
    "sigs.k8s.io/jobset@v0.12.0": (0, {"the file has 0": 1}),
}
"""For each module, the files with a kind that Muster converts: how many are converted, and why the others are refused."""
KINDS = {kind for _, kind in CONVERTERS} - {"Job"}  # some manifests have a plain Job that trains nothing beside other objects
OTHERS = {"MXJob", "PaddleJob", "XGBoostJob", "RayCluster", "RayService", "ScheduledSparkApplication"}
KIND = re.compile(r"""^kind: *["']?(\w+)""", re.MULTILINE)
NO_EXAMPLES = re.compile(r"crd|chart|/templates/|testdata")

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="Go downloads the manifests")


def manifests(module: str, folder: Path) -> dict[str, tuple[set[str], str]]:
    """By path, the kinds and the text of each file of the module that has a job of its operator."""
    (folder / "go.mod").write_text("module examples\n")
    done = subprocess.run(["go", "mod", "download", "-json", module], cwd=folder, capture_output=True, text=True, timeout=300, check=True)
    root = Path(json.loads(done.stdout)["Dir"])
    texts = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.y*ml")}
    kinds = {path: set(KIND.findall(text)) for path, text in texts.items() if not NO_EXAMPLES.search(path)}
    return {path: (found, texts[path]) for path, found in kinds.items() if found & (KINDS | OTHERS)}


@pytest.mark.parametrize("module", PUBLISHED)
def test_the_published_manifests_are_converted_or_refused_with_one_sentence(module: str, tmp_path: Path) -> None:
    found, converted, refused = manifests(module, tmp_path), list[str](), dict[str, str]()
    for path, (_, text) in found.items():
        try:
            results = convert(text)
        except ConvertError as error:
            refused[path] = str(error)
            continue
        for each in results:
            check_job(each.document(), source=path)
        converted.append(path)
    expected, reasons = PUBLISHED[module]
    assert [path for path, sentence in refused.items() if "\n" in sentence] == []
    of_jobs = [sentence for path, sentence in refused.items() if found[path][0] & KINDS]
    assert Counter(next((reason for reason in reasons if reason in said), said) for said in of_jobs) == reasons
    assert len(converted) == expected, sorted(converted)
