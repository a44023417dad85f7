"""Writes docs/demo.svg: the output of a real `make demo`, as a picture for the README. `make recording` runs this."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "docs" / "demo.svg"
COLUMNS = 118
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Output of make demo">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: {char_height}px; \
line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""As the format of rich, without the address of a font: a picture in a README loads nothing."""


def main() -> int:
    demo = subprocess.run([sys.executable, str(HERE / "demo.py")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(demo.stdout, end="")
    if demo.returncode:
        print("the demo has failed, so the picture stays as it was", file=sys.stderr)
        return demo.returncode
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text.from_ansi("$ make demo\n" + demo.stdout.rstrip()))
    PICTURE.write_text(console.export_svg(title="make demo", code_format=FORMAT, unique_id="demo"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
