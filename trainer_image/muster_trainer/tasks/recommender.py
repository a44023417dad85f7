"""The bundled task `recommender`: predicts which items a user likes. Tastes are synthetic, and each user and item has an embedding.

Most parameters are in the embeddings. Parameter servers are meant for such models. This module needs no framework.
`pytorch/recommender.py` and `tensorflow/recommender.py` build the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muster_contract.tasks import TASKS
from muster_trainer.data import ArrayDataSet

TASTES = 4  # dimensions of the true tastes of users and items
NOISE = 0.05  # the share of opinions that are inverted
FIRST_SCALE = 0.3  # of the initial embeddings: products are small at first, but large enough for gradients
DATA_SEED = 20261121  # fixed, so that the data are the same for every seed of the training
TEST_EVERY = 10

KEYS = TASKS["recommender"].keys
IDENTITY_KEYS = ("users", "items", "opinions", "embedding")


def dataset(config: Mapping[str, Any], split: str) -> ArrayDataSet:
    """The `train` or `test` part. Every tenth opinion is in the test part. A user likes an item if their tastes have the same direction.

    A sample is ((user, item), liked). The pair is int64, shape (2,). `liked` is float32, shape (), and 1.0 or 0.0.
    """
    random = np.random.RandomState(DATA_SEED)  # its stream is the same in all versions of numpy (NEP 19)
    users, items = random.randn(config["users"], TASTES), random.randn(config["items"], TASTES)
    pairs = np.stack([random.randint(0, len(side), config["opinions"]) for side in (users, items)], axis=1).astype(np.int64)
    likes = (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(axis=1) > 0
    liked = (likes ^ (random.rand(len(pairs)) < NOISE)).astype(np.float32)
    in_test = np.arange(len(pairs)) % TEST_EVERY == TEST_EVERY - 1
    chosen = in_test if split == "test" else ~in_test
    return ArrayDataSet(pairs[chosen], liked[chosen])
