"""tf.distribute.TPUStrategy on a TPU slice of Google Kubernetes Engine.

Each host of the slice runs a TensorFlow server. The process of host 0 controls the chips of all hosts. The other hosts run
`server.serve_host`. Each call has a deadline, because some calls, such as `experimental_connect_to_cluster`, block for ever without a
TPU. This module has never run on a TPU. The code after `initialize_tpu_system` is not tested.
"""

from __future__ import annotations

import os

import tensorflow as tf

from muster_contract.errors import BadConfiguration
from muster_contract.trainer_spec import TrainerSpec
from muster_trainer.host.waiting import START_SECONDS, wait_for, within
from muster_trainer.tensorflow import server
from muster_trainer.tensorflow.world import Membership, one_line, peers

FIND_SECONDS = 60.0
CONNECT_SECONDS = 120.0
INITIALIZE_SECONDS = 300.0


def join(spec: TrainerSpec) -> Membership:
    """Creates the strategy. Raises BadConfiguration if there is no TPU, and PeerLost if a host of the slice does not answer."""
    hosts = server.hosts()
    if hosts:
        server.start({"worker": hosts}, "worker", 0)
        wait_for({f"host {index} of the TPU slice": address for index, address in enumerate(hosts)}, START_SECONDS)
    resolver = within(FIND_SECONDS, "finding the TPU", lambda: _resolver(named=bool(hosts)))
    with peers(0):
        try:
            within(CONNECT_SECONDS, "connecting to the TPU hosts", lambda: tf.config.experimental_connect_to_cluster(resolver))
            within(INITIALIZE_SECONDS, "initialising the TPU", lambda: tf.tpu.experimental.initialize_tpu_system(resolver))
        except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
            raise BadConfiguration(
                f"TPU: TensorFlow finds no TPU on this host ({one_line(error)}). The image needs a TensorFlow that is built for TPUs, with "
                "libtpu, and the pod a node with the chips of spec.options.tpu; without TPUs, use Mirrored or MultiWorkerMirrored"
            ) from error
        return Membership(0, 1, tf.distribute.TPUStrategy(resolver))


def _resolver(*, named: bool) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    """Finds the TPU by KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, which TensorFlow reads itself, else by TPU_NAME. `local` means the chips of this
    host."""
    name = os.environ.get("TPU_NAME")
    if not named and not name:
        raise BadConfiguration(
            f"TPU: neither {server.ENDPOINTS} nor TPU_NAME is set, and nothing says where the TPU is; write TPU_NAME=local for this host's"
        )
    try:
        return tf.distribute.cluster_resolver.TPUClusterResolver(tpu=None if named else name)
    except (ValueError, RuntimeError, ImportError) as error:
        raise BadConfiguration(f"TPU: TPU_NAME={name!r} cannot be found: {one_line(error)}") from error
