"""Writes generated files. With --check, prints the stale ones and returns 1: `deploy/generate.py [--check]`.

the version in Dockerfile, Chart.yaml and the docs from pyproject.toml
charts/muster/files/muster.dev_*.yaml              from crds/
charts/muster/README.md, the table of values       from charts/muster/values.yaml
charts/muster/files/dashboards/*.json              from deploy/dashboards.py
deploy/install.yaml                                from charts/muster, by helm (the one of $HELM, else of PATH)
"""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "muster"
CRDS = ("muster.dev_trainingjobs.yaml", "muster.dev_trainingpresets.yaml")
NAMESPACE = "muster-system"
KUBERNETES = "1.30.0"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
VERSIONED = {
    "Dockerfile": r"^ARG VERSION=",
    "charts/muster/Chart.yaml": r"^(?:version|appVersion): ",
    "docs/**/*.md": r"registry\.example\.com/ml/muster-[\w$-]+:|muster_training-|muster-(?=\d)|kubectl-muster-|VERSION=",
}
"""Files with the version, and the text before it."""
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"

NAMESPACE_OBJECT = f"""\
# Generated from charts/muster by `make manifests`; do not edit. For settings of your own use Helm.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""


def main(arguments: list[str]) -> int:
    """Writes or checks all files. The order matters, because the chart contains the version and the CRDs, and install.yaml contains the
    chart."""
    check = "--check" in arguments
    stale = []
    for path, text in _generated():
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    if check and stale:
        print(f"stale: {', '.join(stale)}; run `make manifests`", file=sys.stderr)
        return 1
    return 0


def _generated() -> Iterator[tuple[Path, str]]:
    yield from versioned()
    for name in CRDS:
        yield CHART / "files" / name, (ROOT / "crds" / name).read_text()
    readme = CHART / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    yield readme, before + BEGIN + values_table((CHART / "values.yaml").read_text()) + END + rest.partition(END)[2]
    for name, content in runpy.run_path(str(ROOT / "deploy" / "dashboards.py"))["dashboards"]().items():
        yield CHART / "files" / "dashboards" / name, content
    yield ROOT / "deploy" / "install.yaml", NAMESPACE_OBJECT + rendered()


def versioned() -> Iterator[tuple[Path, str]]:
    """The files that name the version, with that of pyproject.toml."""
    for pattern, before in VERSIONED.items():
        for path in sorted(ROOT.glob(pattern)):
            yield path, re.sub(rf"({before})\d+\.\d+\.\d+(?:-\w+\.\d+)?", rf"\g<1>{VERSION}", path.read_text(), flags=re.MULTILINE)


def rendered() -> str:
    """The chart with its defaults, without hooks."""
    helm = os.environ.get("HELM", "helm")
    command = [helm, "template", "muster", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--no-hooks"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        sys.exit(f"{helm}: not found; install Helm 3, or set HELM to its path")
    except subprocess.CalledProcessError as error:
        sys.exit(f"helm template: {error.stderr}")


def values_table(text: str) -> str:
    """A Markdown table of the values that a comment `# -- ...` describes, with their defaults."""
    values = yaml.safe_load(text)
    rows = ["| value | default | meaning |\n| --- | --- | --- |\n"]
    for path, meaning in _described(text):
        default = values
        for name in path:
            default = default[name]
        rows.append(f"| `{'.'.join(path)}` | `{json.dumps(default)}` | {meaning} |\n")
    return "".join(rows)


def _described(text: str) -> Iterator[tuple[list[str], str]]:
    path: list[str] = []
    meaning = None
    for line in text.splitlines():
        content = line.lstrip()
        depth = (len(line) - len(content)) // 2
        if content.startswith("# -- "):
            meaning = content.removeprefix("# -- ")
        elif content and not content.startswith("#") and depth <= len(path):
            path = [*path[:depth], content.partition(":")[0]]
            if meaning is not None:
                yield path, meaning
                meaning = None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
