"""A model of your own, in PyTorch: 569 tumours with 30 measurements each (scikit-learn ships them), benign or not.

A job trains it with `strategy: DDP` and `trainer: {module: cancer_torch}`; keys of `config` that are not Muster's own,
such as `width` here, are passed on as they are. The functions are explained in docs/tasks/own-model.md.
"""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn


def build_model(config):
    width = config.get("width", 32)
    return nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1), nn.Flatten(0))


class Tumours(torch.utils.data.Dataset):
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
    return nn.functional.binary_cross_entropy_with_logits(outputs, batch[1], reduction="none")


def optimizer(model, config):
    return torch.optim.AdamW(model.parameters(), lr=config.learningRate)


def metrics(outputs, batch):
    return {"accuracy": ((outputs > 0) == (batch[1] > 0.5)).float()}
