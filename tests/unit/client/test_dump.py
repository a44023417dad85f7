"""A debug dump has no secrets."""

from __future__ import annotations

import json
import time

import pytest

from muster.client.dump import HIDDEN, redact

SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "value",
    [
        {"name": "AWS_SECRET_ACCESS_KEY", "value": SECRET},
        {"name": "HF_TOKEN", "value": SECRET},
        {"password": SECRET},
        {"config": {"api_key": SECRET}},
        {"logs": [f"connecting with password={SECRET}"]},
        {"logs": [f"GET https://user:{SECRET}@example.com/"]},
        {"logs": [f"Authorization: {SECRET}"]},
        {"logs": [f"Authorization: Bearer {SECRET}"]},
        {"logs": [f"curl -H 'Authorization: Basic {SECRET}'"]},
        {"logs": [f"redis://:{SECRET}@host:6379/0"]},
        {"logs": [f"hf_{SECRET}{SECRET}"]},
        {"logs": [f"-----BEGIN PRIVATE KEY----- {SECRET}"]},
        {"name": "MYSQL_PWD", "value": SECRET},
        {"name": "SSH_KEY", "value": SECRET},
        {"args": [f"--token={SECRET}"]},
        {"args": [f"--api-key={SECRET}"]},
        {"args": [f"train.py --password {SECRET}"]},
        {"args": ["--api-key", SECRET]},
        *({"name": name, "value": SECRET} for name in ("KAGGLE_KEY", "OPENAI_KEY", "AZURE_STORAGE_KEY", "GITHUB_PAT", "JWT", "DB_PASS")),
        *({"name": name, "value": SECRET} for name in ("MYTOKEN", "dbPassword", "SLACK_WEBHOOK_URL", "S3_CREDS", "REDIS_AUTH")),
        {"storageKey": SECRET},
        {"logs": [f"https://account.blob.example.com/c?sv=1&sig={SECRET}&se=2"]},
        {"logs": [f"https://maps.example.com/?key={SECRET}"]},
        {"logs": [f"https://hooks.slack.com/services/T0/B0/{SECRET}"]},
        {"logs": [f"https://discord.com/api/webhooks/1/{SECRET}"]},
        {"logs": [f"export OPTIONS=DB_PASS={SECRET}", f'{{"kaggle_key": "{SECRET}"}}']},
        {"args": [f"--db-pass {SECRET}"]},
        {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}},
        {"metadata": {"managedFields": [SECRET]}},
    ],
    ids=str,
)
def test_values_that_look_like_secrets_are_left_out(value: object) -> None:
    assert SECRET not in json.dumps(redact(value))


@pytest.mark.parametrize(
    "value",
    [
        {"name": "EPOCHS", "value": "20"},
        {"secretName": "s3"},
        {"secretRef": {"name": "s3"}},
        {"logs": ["step 3: loss 0.5"]},
        {"logs": ["http://host:8080/path@v1"]},
        {"args": ["--tokenizer", "bpe", "--basic", "configuration"]},
        {"name": "TOKENIZERS_PARALLELISM", "value": "false"},
        {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "topologyKey": "kubernetes.io/hostname"},
        {"logs": ["taint {key: value}", "the key was pressed", "author: me", "tokens: 512, passes: 2", "KEY_COLUMN=id"]},
        {"image": "registry.example.com:5000/team/own:1"},
    ],
    ids=str,
)
def test_other_values_are_not_changed(value: object) -> None:
    assert redact(value) == value


def test_keys_and_tokens_in_text_are_recognised_by_their_form() -> None:
    assert redact("AKIAIOSFODNN7EXAMPLE") == f"AKIA{HIDDEN}"
    assert redact("eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln") == f"eyJ{HIDDEN}"


@pytest.mark.parametrize(
    "piece", ["a", "-", " ", "eyJ-", "password=", "--token ", "key = ", "a.b", "://a:", "https://a/", "bearer ", "=", '"']
)
def test_the_time_for_a_long_text_is_in_proportion_to_its_length(piece: str) -> None:
    begun = time.process_time()
    redact({"annotations": {"long": piece * (262_144 // len(piece))}})
    assert time.process_time() - begun < 10, "a quadratic pattern takes a minute"
