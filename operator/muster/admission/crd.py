"""The CustomResourceDefinitions, generated from the API types: `python -m muster.admission.crd [--check] [FILE]`.

FILE is that of the TrainingJob. Without FILE, the command also writes or checks that of the TrainingPreset, the policy for changes
(`change_policy.py`), and the JSON schema for editors (`job_schema.py`).
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from muster.admission import change_policy, definitions, job_schema


def main(arguments: list[str]) -> int:
    """Writes the files. With --check, prints the differences instead and returns 1 if there is one."""
    check = "--check" in arguments
    names = [argument for argument in arguments if argument != "--check"]
    every = {
        definitions.DEFAULT_FILE: definitions.text,
        definitions.PRESET_FILE: definitions.preset_text,
        change_policy.DEFAULT_FILE: definitions.change_policy_text,
        job_schema.DEFAULT_FILE: job_schema.text,
    }
    files = {Path(names[0]): definitions.text} if names else every
    if check:
        return max(_check(file, generated()) for file, generated in files.items())
    for file, generated in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(generated(), encoding="utf-8")
    return 0


def _check(file: Path, generated: str) -> int:
    current = file.read_text(encoding="utf-8") if file.exists() else ""
    if current == generated:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(current.splitlines(True), generated.splitlines(True), fromfile=str(file), tofile="generated from the types")
    )
    print(f"{file} is stale: run `python -m muster.admission.crd`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
