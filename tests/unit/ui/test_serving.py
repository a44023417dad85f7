"""`muster ui` and `muster report` as commands."""

from __future__ import annotations

import http.client
import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from muster.cli.main import main


def test_the_page_is_served_over_https_with_the_certificate_of_a_folder(tmp_path: Path) -> None:
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "1"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files], check=True, capture_output=True, timeout=60
    )
    command = [sys.executable, "-m", "muster.cli", "ui", "--sign-in", "--port", "0", "--certificate", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.fullmatch(r"Serving https://127\.0\.0\.1:(\d+)/\n", process.stdout.readline())
            assert address is not None
            trusted = ssl.create_default_context(cafile=str(certificate))
            connection = http.client.HTTPSConnection("localhost", int(address[1]), timeout=60, context=trusted)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            connection.close()
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_the_error_for_a_missing_certificate_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ui", "--sign-in", "--port", "0", "--certificate", str(tmp_path)])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("the page cannot be served: ")


def test_a_report_of_an_unknown_name_mentions_runs_and_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["report", "nowhere", "--kubeconfig", str(tmp_path / "none")])
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith("nowhere: there is no such run directory. As the name of a job: no cluster")
