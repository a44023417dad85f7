"""What `helm test` runs: trains a small job through the API server, and ends with 0 when it has succeeded.

train.py NAMESPACE NAME STRATEGY WORKERS SECONDS
"""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = "https://kubernetes.default.svc"


def main(namespace, name, strategy, workers, seconds):
    jobs = f"/apis/muster.dev/v1beta1/namespaces/{namespace}/trainingjobs"
    call("DELETE", f"{jobs}/{name}", {"propagationPolicy": "Foreground"})
    deadline = time.monotonic() + seconds
    wait(deadline, "an earlier test's job to go", lambda: call("GET", f"{jobs}/{name}") is None)
    job = call("POST", jobs, job_of(name, strategy, workers))
    print(f"trainingjob {namespace}/{name} made: {strategy}, {workers} workers", flush=True)
    said = None

    def ended():
        nonlocal job, said
        job = call("GET", f"{jobs}/{name}")
        if job is None:
            sys.exit(f"{name} was deleted by somebody else")
        status = job.get("status", {})
        news = f"{status.get('phase', 'not seen by the operator yet')}: {status.get('message', '')}"
        if news != said:
            said = news
            print(news, flush=True)
        return status.get("phase") in ("Succeeded", "Failed")

    wait(deadline, f"{name} to end", ended)
    if job["status"]["phase"] != "Succeeded":
        sys.exit(f"{name} is left for you to look at: kubectl describe trainingjob --namespace {namespace} {name}")
    call("DELETE", f"{jobs}/{name}", {"propagationPolicy": "Background"})


def job_of(name, strategy, workers):
    return {
        "apiVersion": "muster.dev/v1beta1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "strategy": strategy,
            "trainer": {"task": "digits", "config": {"epochs": 1}},
            "roles": {"worker": {"replicas": workers, "resources": {"requests": {"cpu": "100m"}}}},
        },
    }


def call(method, path, body=None):
    """The answer of the API server; None where there is no such object."""
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(SERVER + path, data, headers, method=method)
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404 and method != "POST":
            return None
        sys.exit(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}")
    except OSError as error:
        if method == "GET":  # an API server that restarts: the next look will tell
            return {}
        sys.exit(f"{method} {path}: {error}")


def wait(deadline, what, condition):
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited too long for {what}; tests.timeoutSeconds may be too short for the first pull of the image")
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
