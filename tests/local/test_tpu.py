"""The TPU strategy on machines without a TPU: the real calls, one message, no hang."""

from __future__ import annotations

import threading

import pytest

from local_cluster.ports import free_ports
from muster_contract.errors import BadConfiguration, PeerLost
from tests.local import proofs
from tests.support.bare_worlds import trainer, world

pytestmark = pytest.mark.tensorflow


def test_a_host_without_a_tpu_ends_with_one_message() -> None:
    with world("TPU", trainer(None), size=1, TPU_NAME="local") as running:
        assert running.finish() == [11], running.story()
    assert proofs.last_error(running)["reason"] == "BadConfiguration"
    assert proofs.field_of(proofs.last_error(running)) == "TPU"


def test_hosts_of_a_slice_without_tpus_meet_and_all_end() -> None:
    endpoints = ",".join(f"grpc://127.0.0.1:{port}" for port in free_ports(2))
    with world("TPU", trainer(None), size=2, KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS=endpoints) as running:
        assert running.finish() == [11, 0], running.story()
    assert proofs.field_of(proofs.last_error(running)) == "TPU"


def test_a_job_that_says_nowhere_where_its_tpu_is_and_a_host_that_never_comes_are_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from muster_trainer.tensorflow import server, tpu

    monkeypatch.delenv("TPU_NAME", raising=False)
    with pytest.raises(BadConfiguration, match="KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS nor TPU_NAME is set"):
        tpu.join(None)  # type: ignore[arg-type]
    monkeypatch.setattr(tpu, "START_SECONDS", 0.3)
    monkeypatch.setattr(server, "start", lambda *_: None)
    monkeypatch.setenv(server.ENDPOINTS, f"grpc://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(PeerLost, match=r"waited 0\.3 s for host 0 of the TPU slice"):
        tpu.join(None)  # type: ignore[arg-type]


def test_a_tpu_that_answers_no_more_ends_the_wait_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from muster_trainer.tensorflow import tpu

    monkeypatch.setenv("TPU_NAME", "local")
    monkeypatch.setattr(tpu, "INITIALIZE_SECONDS", 0.2)
    monkeypatch.setattr("tensorflow.tpu.experimental.initialize_tpu_system", lambda _: threading.Event().wait())
    with pytest.raises(PeerLost, match=r"initialising the TPU took more than 0\.2 s"):
        tpu.join(None)  # type: ignore[arg-type]
