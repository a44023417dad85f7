"""A debug dump has no secrets."""

from __future__ import annotations

import json
import time

import pytest

from muster.client.redaction import HIDDEN, redact

SECRET = "hunter2hunter2"
RANDOM = "QeZ7p9Kx0mLwRt5vBn3YsUfHd8Gj2CaVi6TkXo1E"
"""As a cloud makes a key."""


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
        {"logs": [f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{SECRET}\n-----END PGP"]},
        {"logs": [f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{SECRET}"]},
        {"logs": [f"git clone https://{SECRET}@example.com/a/b"]},
        {"logs": [f"postgres://user:a/{SECRET}@host/db", f"https://{'u' * 90}:{SECRET}@host", f"https://u:a@{SECRET}@host"]},
        {"name": "CONFIG", "value": json.dumps({"password": SECRET})},
        {"logs": [json.dumps(json.dumps({"kaggle_key": SECRET})), json.dumps(json.dumps(json.dumps({"password": f"a {SECRET}"})))]},
        {"logs": [f'password="my {SECRET}"', f"password='my, {SECRET}'", f"password=a,{SECRET}", f'token="a\\"{SECRET}"']},
        {"logs": [f"password => {SECRET}", f"password := {SECRET}", f"<password>{SECRET}</password>", f"password%3D{SECRET}"]},
        {"logs": [f"{{'password': b'{SECRET}'}}", f"[('password', '{SECRET}')]", f"password\uff1d{SECRET}"]},
        {"logs": [f"Cookie: a=1; sid={SECRET}", f'Authorization: Digest username="a", response="{SECRET}"', f"sessionid={SECRET}"]},
        {"logs": [f"curl -u user:{SECRET} https://a", f"curl --user=user:{SECRET}"]},
        {"args": ["curl", "-u", f"user:{SECRET}"]},
        {"logs": [f"https://a.webhook.office.com/webhookb2/{SECRET}", f"https://api.telegram.org/bot12345678:AA{SECRET}{SECRET}/send"]},
        {"config": {"credentials": {"aws": SECRET, "more": [{"id": SECRET}]}}},
        {"password": {"value": SECRET}},
        {"client-key-data": SECRET},
        *(
            {"name": name, "value": SECRET}
            for name in ("LDAP_BINDPW", "DB_PW", "GCP_KEY_JSON", "SSH_KEY_BASE64", "HASH_SALT", "SESSION_ID")
        ),
        *(
            {"logs": [f"with {form}{SECRET}{SECRET}"]}
            for form in ("ya29.", "GOCSPX-", "xapp-1-", "sk_live_", "rk_live_", "npm_", "pypi-", "dop_v1_", "SG.", "dapi", "nvapi-", "r8_")
        ),
        *({"logs": [f"with {form}{SECRET}{SECRET}"]} for form in ("gsk_", "hvs.", "glrt-", "glpat-", "github_pat_", "xoxb-")),
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
        {
            "imageID": f"registry.example.com:5000/team/own@sha256:{'0a' * 32}",
            "hash": "0a" * 32,
            "uid": "5f2b1c9e-0000-4000-8000-0a0a0a0a0a0a",
        },
        {"logs": ["git+https://example.com/a/b@v1", "/opt/conda/envs/Own/lib/python3/site/packages/Torch/Nn/Modules", "Test" * 12]},
        {"volumes": [{"secret": {"secretName": "s3", "items": [{"key": "a", "path": "b"}], "defaultMode": 420}}]},
        {"sources": [{"serviceAccountToken": {"audience": "muster", "expirationSeconds": 3600, "path": "token"}}]},
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "a", "optional": True}}}]},
        {"imagePullSecrets": [{"name": "pull"}], "matchLabelKeys": ["a"]},
    ],
    ids=str,
)
def test_other_values_are_not_changed(value: object) -> None:
    assert redact(value) == value


def test_a_number_with_the_name_of_a_secret_is_left_out() -> None:
    assert redact({"password": 12345678, "pin_pass": 1.5, "automountServiceAccountToken": False}) == {
        "password": HIDDEN,
        "pin_pass": HIDDEN,
        "automountServiceAccountToken": False,
    }


@pytest.mark.parametrize("text", [RANDOM, f"{RANDOM}+/Ab12==", f"key {RANDOM} used"])
def test_text_that_may_be_random_is_left_out(text: str) -> None:
    """The lines of a PEM file are lines of the log, and only the first one says what they are."""
    assert RANDOM not in json.dumps(redact({"logs": ["-----BEGIN PRIVATE KEY-----", text, "-----END PRIVATE KEY-----"]}))


def test_keys_and_tokens_in_text_are_recognised_by_their_form() -> None:
    assert redact("AKIAIOSFODNN7EXAMPLE") == f"AKIA{HIDDEN}"
    assert redact("eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln") == f"eyJ{HIDDEN}"


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "-",
        " ",
        "eyJ-",
        "password=",
        "--token ",
        "key = ",
        "a.b",
        "://a:",
        "https://a/",
        "bearer ",
        "=",
        '"',
        "password='",
        "Cookie: ",
        "-u a:",
        "://a:b",
        "://a",
        "-----BEGIN PRIVATE KEY-----",
        RANDOM,
        "\\",
        "token\\",
        "/bot1",
    ],
)
def test_the_time_for_a_long_text_is_in_proportion_to_its_length(piece: str) -> None:
    begun = time.process_time()
    redact({"annotations": {"long": piece * (262_144 // len(piece))}})
    assert time.process_time() - begun < 10, "a quadratic pattern takes a minute"
