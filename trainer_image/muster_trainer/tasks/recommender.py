"""The bundled task `recommender`: which user likes which item, from synthetic tastes, with an embedding for each user and item.

Most parameters are in the embeddings, which is what parameter servers are for. Everything here is free of a framework;
`pytorch/recommender.py` and `tensorflow/recommender.py` build the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muster_contract.config import COMMON_KEYS, Key, whole
from muster_trainer.data import ArrayDataSet

TASTES = 4  # true dimensions of users and items
NOISE = 0.05  # share of opinions that are turned round
FIRST_SCALE = 0.3  # of the embeddings' first numbers: products begin near zero, yet not so near that nothing moves
DATA_SEED = 20261121  # fixed: the data are the same for every seed of the training
TEST_EVERY = 10

KEYS: tuple[Key, ...] = (
    *COMMON_KEYS,
    whole("users", 400, least=2, most=10_000_000),
    whole("items", 200, least=2, most=10_000_000),
    whole("opinions", 40_000, least=100, most=100_000_000),
    whole("embedding", 8, least=1, most=4096),
)
IDENTITY_KEYS = ("users", "items", "opinions", "embedding")


def dataset(config: Mapping[str, Any], split: str) -> ArrayDataSet:
    """The `train` or `test` part; each tenth opinion is for the test. A user likes an item whose tastes point the same way.

    A sample is ((user, item), liked): int64 (2,), and float32 () with 1.0 for liked and 0.0 for not.
    """
    random = np.random.RandomState(DATA_SEED)  # its stream is fixed for ever (NEP 19)
    users, items = random.randn(config["users"], TASTES), random.randn(config["items"], TASTES)
    pairs = np.stack([random.randint(0, len(side), config["opinions"]) for side in (users, items)], axis=1).astype(np.int64)
    likes = (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(axis=1) > 0
    liked = (likes ^ (random.rand(len(pairs)) < NOISE)).astype(np.float32)
    in_test = np.arange(len(pairs)) % TEST_EVERY == TEST_EVERY - 1
    chosen = in_test if split == "test" else ~in_test
    return ArrayDataSet(pairs[chosen], liked[chosen])
