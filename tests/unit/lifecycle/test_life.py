"""The page about the life of a job shows the moves of the code."""

from __future__ import annotations

from pathlib import Path

from muster.lifecycle.decide import LIFE

PAGE = Path(__file__).resolve().parents[3] / "docs/architecture/lifecycle.md"
BEGIN, END = "<!-- moves -->\n", "<!-- end of moves -->"


def table_and_diagram() -> str:
    rows = [f"| {' or '.join(source.__name__ for source in move.sources)} | {move.when} | {move.target.__name__} |\n" for move in LIFE]
    arrows = [f"    {source.__name__} --> {move.target.__name__}: {move.when}\n" for move in LIFE for source in move.sources]
    diagram = "".join(["```mermaid\n", "stateDiagram-v2\n", "    [*] --> Settled\n", *arrows, "    Ended --> [*]\n", "```\n"])
    return "".join(["| from | if | to |\n", "| --- | --- | --- |\n", *rows, "\n", diagram])


def test_the_page_shows_the_moves_of_the_code() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    shown, _, after = rest.partition(END)
    assert shown == table_and_diagram(), f"replace the text between the marks in {PAGE} by:\n{table_and_diagram()}"
    assert before
    assert after


def test_an_attempt_ends_before_another_begins() -> None:
    begins = [number for number, move in enumerate(LIFE) if move.target.__name__ == "Open"]
    assert begins == [len(LIFE) - 1]
