"""A model of your own, in JAX: 569 tumours with 30 measurements each (scikit-learn ships them), benign or not.

A job trains it with `strategy: JAX` and `trainer: {module: cancer_jax}`; keys of `config` that are not Muster's own,
such as `width` here, are passed on as they are. The functions are explained in docs/tasks/own-model.md.
"""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler


class Network:
    """Pure functions. A flax.linen module has the same two."""

    def __init__(self, width):
        self.width = width

    def init(self, key, inputs):
        first, second = jax.random.split(key)
        dense = jax.nn.initializers.glorot_uniform()
        return {
            "hidden": {"weight": dense(first, (inputs.shape[1], self.width)), "bias": jnp.zeros(self.width)},
            "out": {"weight": dense(second, (self.width, 1)), "bias": jnp.zeros(1)},
        }

    def apply(self, parameters, inputs, key=None):
        hidden = jax.nn.relu(inputs @ parameters["hidden"]["weight"] + parameters["hidden"]["bias"])
        if key is not None:  # dropout, while it trains
            hidden = jnp.where(jax.random.bernoulli(key, 0.9, hidden.shape), hidden / 0.9, 0)
        return (hidden @ parameters["out"]["weight"] + parameters["out"]["bias"])[:, 0]


def build_model(config):
    return Network(config.get("width", 32))


class Tumours:
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def dataset(config, split):
    inputs, targets = load_breast_cancer(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(inputs, targets, test_size=0.2, random_state=0, stratify=targets)
    scaler = StandardScaler().fit(train_x)
    x, y = (train_x, train_y) if split == "train" else (test_x, test_y)
    return Tumours(scaler.transform(x).astype("float32"), y.astype("float32"))


def loss(outputs, batch):
    return optax.sigmoid_binary_cross_entropy(outputs, batch[1])


def optimizer(model, config):
    return optax.adamw(config.learningRate)


def metrics(outputs, batch):
    return {"accuracy": ((outputs > 0) == (batch[1] > 0.5)).astype("float32")}
