"""A model of your own, in Keras 3: 569 tumours with 30 measurements each (scikit-learn ships them), benign or not.

A job trains it with `strategy: MultiWorkerMirrored` and `trainer: {module: cancer_tensorflow}`; keys of `config` that
are not Muster's own, such as `width` here, are passed on as they are. The functions are explained in
docs/tasks/own-model.md.
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler


def build_model(config):
    return keras.Sequential(
        [
            keras.Input((30,)),
            keras.layers.Dense(config.get("width", 32), activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1),
            keras.layers.Reshape(()),
        ]
    )


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
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=batch[1], logits=outputs)


def optimizer(model, config):
    return keras.optimizers.AdamW(config.learningRate)


def metrics(outputs, batch):
    return {"accuracy": tf.cast(tf.equal(outputs > 0, batch[1] > 0.5), tf.float32)}
