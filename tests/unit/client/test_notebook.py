"""A job in a notebook is a table with escaped text."""

from __future__ import annotations

from pathlib import Path

import muster
from muster.client.notebook import Report, as_html


def test_a_table_has_a_bar_and_the_reported_figures() -> None:
    shown = as_html(
        muster.Progress(name="digits", phase=muster.Phase.RUNNING, step=30, total_steps=40, loss=0.123456, eta_seconds=9, restarts=2)
    )
    for expected in ("digits", "Running", "30 of 40", "0.1235", "value='0.7500'", ">9<", ">2<"):
        assert expected in shown
    plain = as_html(muster.Progress(name="digits", phase=muster.Phase.PENDING))
    assert "<progress" not in plain
    assert "loss" not in plain


def test_text_of_a_job_is_escaped() -> None:
    hostile = "<script>alert('x')</script>"
    shown = as_html(muster.Progress(name=hostile, phase=muster.Phase.FAILED, message=hostile))
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown


def test_a_job_that_cannot_be_read_is_shown_by_its_name(tmp_path: Path) -> None:
    run = tmp_path / "digits"
    run.mkdir()
    (run / "job.yaml").write_text("metadata: {name: digits}\nspec: {strategy: DDP, trainer: {task: digits}}\n")
    with muster.Client(backend="local", directory=tmp_path) as client:
        job = client.get("digits")
        assert "digits" in (job._repr_html_() or "")
        (run / "job.yaml").unlink()
        assert job._repr_html_() is None
        assert repr(job) == "<Job default/digits>"


def test_a_report_is_shown_in_a_sandboxed_frame() -> None:
    shown = Report("digits", '<p>"5 > 3"</p><script>alert(1)</script>')._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts" srcdoc=')
    assert "<script" not in shown
    assert "&lt;p&gt;&quot;5 &gt; 3&quot;&lt;/p&gt;" in shown
