"""The chart: what it renders for whom, and what it refuses."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.images.build import IMAGES
from muster.admission.job_policy import CONTAINER_FIELDS, POD_FIELDS, PORT_FIELDS, UNLIMITED
from muster.api.capacity import DEFAULT_CLASSES
from muster.operator.configuration import Configuration
from muster.strategies.registry import RESERVED_BUILT_IN, is_reserved_env
from tests.chart.chart_variants import CHART, ROOT, VARIANTS, Manifest, Render

POD_FIELDS_OF_AUTHORS = tuple(field for field in POD_FIELDS if field != "priorityClassName")


def only(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    [found] = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    return found


def kinds(manifests: list[Manifest]) -> set[str]:
    return {each["kind"] for each in manifests}


def config(manifests: list[Manifest]) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(only(manifests, "ConfigMap", "muster")["data"]["operator.yaml"])
    return content


def container(manifests: list[Manifest]) -> dict[str, Any]:
    [found] = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_it_passes_helms_own_checks_without_a_warning(helm: Any, values: Manifest) -> None:
    done = helm("lint", "--strict", "--kube-version=1.34", str(CHART), values=values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_every_object_has_a_name_of_its_own_and_the_labels_to_find_it(render: Render, values: Manifest) -> None:
    manifests = render(values)
    identities = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in manifests]
    assert len(identities) == len(set(identities))
    for each in manifests:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "muster"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels.items() >= values.get("commonLabels", {}).items()
        assert all(len(label) <= 63 for label in labels.values())


@pytest.mark.parametrize("plural", ["trainingjobs", "trainingpresets"])
def test_the_definitions_are_those_of_the_types_and_outlive_the_release(render: Render, plural: str) -> None:
    definition = only(render(), "CustomResourceDefinition", f"{plural}.muster.dev")
    source = yaml.safe_load((ROOT / "crds" / f"muster.dev_{plural}.yaml").read_text())
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert definition["spec"] == source["spec"]


def test_the_definitions_go_with_the_release_or_are_left_out_where_so_wished(render: Render) -> None:
    kept = [each for each in render({"crds": {"keep": False}}) if each["kind"] == "CustomResourceDefinition"]
    assert ["annotations" in each["metadata"] for each in kept] == [False, False]
    assert "CustomResourceDefinition" not in kinds(render({"crds": {"enabled": False}}))


def test_images_have_the_charts_version_unless_values_name_registry_tag_or_digest(render: Render) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    plain = render()
    assert container(plain)["image"] == f"muster-operator:{version}"
    assert config(plain)["images"] == {
        each: f"muster-trainer-{each.lower()}:{version}" for each in ("Horovod", "JAX", "MPI", "PyTorch", "Ray", "Spark", "TensorFlow")
    }
    own = render(VARIANTS["own registry"])
    assert container(own)["image"] == "registry.example.com/ml/muster-operator@sha256:" + "a" * 64
    assert config(own)["images"]["PyTorch"] == "registry.example.com/ml/muster-trainer-pytorch:nightly"
    assert config(own)["images"]["Ray"] == "registry.example.com/ml/ray-trainer:1"
    assert config(own)["supervisor"] == {"image": container(own)["image"], "pullPolicy": "Always"}
    other = render({"supervisor": {"image": {"repository": "init", "tag": "2"}}})
    assert config(other)["supervisor"]["image"] == "init:2"


def test_the_cache_of_inputs_reaches_the_configuration_and_the_policy_for_the_operator(render: Render) -> None:
    assert "inputs" not in config(render())
    path = "/var/lib/muster/inputs"
    manifests = render({"inputs": {"nodeCache": {"hostPath": path}}, "jobPolicy": {"templates": "Restricted"}})
    assert config(manifests)["inputs"] == {"nodeCache": path}
    assert Configuration.model_validate(config(manifests)).defaults().node_cache == path
    policy = only(manifests, "ValidatingAdmissionPolicy", "-operator")
    expressions = [" ".join(each["expression"].split()) for each in policy["spec"]["validations"]]
    exception = f"!has(volume.hostPath) || (volume.name == 'muster-node-cache' && volume.hostPath.path == '{path}')))"
    assert [exception in each for each in expressions].count(True) == 1


def test_the_capacity_classes_of_the_chart_are_those_of_the_types_and_values_change_them(render: Render, helm: Any) -> None:
    assert Configuration.model_validate(config(render())).capacity.known == DEFAULT_CLASSES
    own = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "example.com/lease", "operator": "Exists"}]}]}
    changed = {"capacity": {"classes": {"lease": own, "reserved": None, "spot": {"pricePerDeviceHour": 1.5}}}}
    classes = Configuration.model_validate(config(render(changed))).capacity.known
    assert (sorted(classes), classes["spot"].price_per_device_hour) == (["lease", "on-demand", "spot"], 1.5)
    assert classes["spot"].node_selector_terms == DEFAULT_CLASSES["spot"].node_selector_terms
    assert not Configuration.model_validate(config(render({"capacity": {"enabled": False}}))).capacity.known


@pytest.mark.parametrize(
    ("of_spot", "words"),
    [
        ({"pricePerNodeHour": "cheap"}, "pricePerNodeHour"),
        ({"pricePerDeviceHour": -1}, "pricePerDeviceHour"),
        ({"nodeSelectorTerms": []}, "nodeSelectorTerms"),
        ({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}, "values"),
        ({"labels": {"a": "b"}}, "labels"),
    ],
)
def test_an_impossible_capacity_class_is_refused_at_installation(helm: Any, of_spot: Manifest, words: str) -> None:
    done = helm("template", "muster", str(CHART), values={"capacity": {"classes": {"spot": of_spot}}})
    assert done.returncode != 0
    assert words in done.stderr


def test_what_jobs_get_by_default_reaches_the_operators_configuration_as_it_was_written(render: Render) -> None:
    values = VARIANTS["GPU nodes"]["jobDefaults"]
    defaults = config(render(VARIANTS["GPU nodes"]))["jobDefaults"]
    spec = defaults["template"]["spec"]
    [trainer] = spec["containers"]
    assert {each["name"]: each["value"] for each in trainer["env"]} == values["env"]
    assert trainer["name"] == "trainer"
    assert spec["tolerations"] == values["tolerations"]
    assert spec["nodeSelector"] == values["nodeSelector"]
    assert defaults["checkpoint"]["storage"] == values["checkpoint"]["storage"]


def test_the_job_policy_reaches_the_operators_configuration_and_limits_nothing_by_default(render: Render) -> None:
    assert Configuration.model_validate(config(render())).job_policy == UNLIMITED
    limits = {"serviceAccounts": ["train"], "volumes": [], "templates": "Restricted", "maxReplicasPerJob": 8}
    policy = Configuration.model_validate(config(render({"jobPolicy": limits}))).job_policy
    assert (policy.service_accounts, policy.priority_classes, policy.volumes) == (["train"], ["*"], [])
    assert (policy.templates, policy.max_replicas_per_job, policy.max_jobs_per_namespace) == ("Restricted", 8, 0)


def test_authors_without_the_right_to_create_pods_get_what_a_restricted_template_may_have(render: Render) -> None:
    policy = only(render(), "ValidatingAdmissionPolicy", "-requester")
    text = " ".join(variable["expression"] for variable in policy["spec"]["variables"])
    lists = [tuple(re.findall(r"'(\w+)'", found)) for found in re.findall(r"in (\[[^\]]*\])", text)]
    assert set(lists) - {POD_FIELDS_OF_AUTHORS, CONTAINER_FIELDS, PORT_FIELDS} == {lists[1]}
    assert lists[1][0] == "name", "what is left are the kinds of volumes"


def test_the_admission_policies_can_be_left_out_and_know_the_operators_account_and_namespaces(render: Render) -> None:
    off = render({"admissionPolicies": {"requester": False, "operator": False, "changes": False}})
    assert not any("AdmissionPolicy" in kind for kind in kinds(off))
    given = render({"serviceAccount": {"create": False, "name": "given"}, "watchNamespaces": ["team-a"]})
    [condition] = only(given, "ValidatingAdmissionPolicy", "-operator")["spec"]["matchConditions"]
    assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:muster-system:given'"
    selector = only(given, "ValidatingAdmissionPolicyBinding", "-requester")["spec"]["matchResources"]["namespaceSelector"]
    assert selector["matchExpressions"] == [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a"]}]


def test_a_second_installation_manages_jobs_of_another_controller_name(render: Render) -> None:
    assert config(render())["controller"] == "muster.dev/operator"
    assert config(render({"controllerName": "muster.dev/second"}))["controller"] == "muster.dev/second"


def test_a_changed_configuration_restarts_the_operator(render: Render) -> None:
    def checksum(values: Manifest) -> str:
        return str(only(render(values), "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) == checksum({"operator": {"replicas": 2}})
    assert checksum({}) != checksum({"jobDefaults": {"env": {"NCCL_DEBUG": "INFO"}}})


def test_there_is_a_disruption_budget_only_where_it_would_not_just_block_drains(render: Render) -> None:
    assert "PodDisruptionBudget" not in kinds(render())
    assert only(render(VARIANTS["highly available"]), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_supervisors_reach_the_leader_only(render: Render) -> None:
    service = only(render(), "Service", "-coordination")
    assert "selector" not in service["spec"]
    coordination = config(render())["coordination"]
    assert (coordination["service"], coordination["port"]) == (service["metadata"]["name"], service["spec"]["ports"][0]["port"])


def test_ports_that_are_named_in_services_probes_and_policies_exist(render: Render) -> None:
    manifests = render(VARIANTS["highly available"])
    operator = container(manifests)
    ports = {each["name"]: each["containerPort"] for each in operator["ports"]}
    assert {operator[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} <= set(ports)
    assert only(manifests, "Service", "-metrics")["spec"]["ports"][0]["targetPort"] in ports
    policy = only(manifests, "NetworkPolicy")["spec"]
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} <= set(ports)
    assert config(manifests)["health"]["port"] == ports["health"]
    assert config(manifests)["metrics"]["port"] == ports["metrics"]


def test_the_operator_reaches_the_api_server_at_the_addresses_that_are_given(render: Render) -> None:
    def rule(values: Manifest) -> Manifest:
        return dict(only(render(values), "NetworkPolicy")["spec"]["egress"][-1])

    assert "to" not in rule({})
    assert rule({"networkPolicy": {"apiServerCIDRs": ["10.0.0.1/32", "fd00::1/128"]}})["to"] == [
        {"ipBlock": {"cidr": "10.0.0.1/32"}},
        {"ipBlock": {"cidr": "fd00::1/128"}},
    ]


def test_the_operator_may_reach_a_collector_of_traces_that_the_values_name(render: Render) -> None:
    values = {
        "operator": {"env": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.monitoring.svc:4318"}},
        "networkPolicy": {"egress": [{"to": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": 4318}]}]},
    }
    manifests, plain = render(values), render({})
    rules = only(manifests, "NetworkPolicy")["spec"]["egress"]
    assert rules == [*only(plain, "NetworkPolicy")["spec"]["egress"], *values["networkPolicy"]["egress"]]
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.monitoring.svc:4318"} in container(manifests)["env"]


def test_a_service_monitor_scrapes_over_https_with_a_token(render: Render) -> None:
    monitors = [each for values in VARIANTS.values() for each in render(values) if each["kind"] == "ServiceMonitor"]
    assert monitors
    for endpoint in (endpoint for monitor in monitors for endpoint in monitor["spec"]["endpoints"]):
        assert (endpoint["scheme"], endpoint["port"]) == ("https", "metrics")
        assert endpoint["bearerTokenFile"].endswith("/serviceaccount/token")


def test_selectors_match_the_operators_pods_and_nothing_that_users_may_change(render: Render) -> None:
    manifests = render({**VARIANTS["highly available"], "operator": {"replicas": 2, "podLabels": {"app.kubernetes.io/name": "other"}}})
    labels = only(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        only(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
        only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        only(manifests, "Service", "-metrics")["spec"]["selector"],
    ]
    assert all(labels >= selector.items() for selector in selectors)
    assert not any("version" in key or "chart" in key for selector in selectors for key in selector)


REFUSED = {
    "unknown": ({"nonsense": 1}, "nonsense"),
    "misspelt": ({"operator": {"replica": 2}}, "replica"),
    "a wildcard namespace": ({"watchNamespaces": ["*"]}, "watchNamespaces"),
    "a wrong type": ({"operator": {"replicas": "two"}}, "replicas"),
    "two storages": (
        {"jobDefaults": {"checkpoint": {"storage": {"uri": "s3://b", "persistentVolumeClaim": {"claimName": "c"}}}}},
        "storage",
    ),
    "an image with a tag in the digest": ({"operator": {"image": {"digest": "1.2.3"}}}, "digest"),
    "a label of ours": ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "commonLabels"),
    "a monitor without its service": (
        {"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}},
        "metrics.service.enabled",
    ),
}


@pytest.mark.parametrize(("values", "word"), REFUSED.values(), ids=REFUSED)
def test_values_that_make_no_sense_are_refused_by_name(helm: Any, values: Manifest, word: str) -> None:
    done = helm("template", "muster", str(CHART), "--kube-version=1.34", values=values)
    assert done.returncode != 0
    assert word in done.stderr
    assert "panic" not in done.stderr


@pytest.mark.parametrize("name", [*sorted(RESERVED_BUILT_IN), "MUSTER_X", "PET_NNODES"])
def test_environment_variables_that_muster_sets_cannot_be_job_defaults(name: str) -> None:
    assert is_reserved_env(name)
    schema = json.loads((CHART / "values.schema.json").read_text())
    pattern = schema["definitions"]["trainingEnv"]["allOf"][1]["propertyNames"]["not"]["pattern"]
    assert re.search(pattern, name)
    assert not re.search(pattern, "NCCL_DEBUG")


def test_the_schema_leaves_no_object_open_by_accident() -> None:
    def objects(node: Any, path: str = "") -> Any:
        if isinstance(node, dict):
            if "properties" in node:
                yield path, node
            for name, child in node.items():
                yield from objects(child, f"{path}/{name}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert [path for path, node in objects(schema) if node.get("additionalProperties") is not False] == []


def test_every_value_has_a_schema_and_every_schema_a_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: Any, node: Any, path: str) -> None:
        node = schema["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        if isinstance(values, dict) and values and "properties" in node:
            assert set(node["properties"]) - {"global"} == set(values), path
            for name, value in values.items():
                compare(value, node["properties"][name], f"{path}.{name}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "")


def test_generated_files_are_current(helm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import local_cluster

    monkeypatch.setenv("HELM", str(local_cluster.Programs(local_cluster.Places.default()).path("helm")))
    generate = runpy.run_path(str(ROOT / "deploy" / "generate.py"))
    assert generate["main"](["--check"]) == 0


def test_install_yaml_is_the_chart_with_its_namespace_and_without_hooks(render: Render) -> None:
    namespace, *objects = [each for each in yaml.safe_load_all((ROOT / "deploy" / "install.yaml").read_text()) if each]
    assert namespace["kind"] == "Namespace"
    assert objects == render(hooks=False)


def test_the_images_are_made_from_no_more_than_the_context_lets_through() -> None:
    allowed = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for source in {word for line in copied for word in line.split()}:
        assert (ROOT / source).exists()
        assert any(Path(each) == Path(source) or Path(source) in Path(each).parents for each in allowed), source
    assert set(allowed) <= set(IMAGES["operator"].sources), "a change of these would not build the images of the local cluster again"


def test_the_web_page_is_left_out_unless_it_is_wished(render: Render) -> None:
    assert not [each for each in render() if each["metadata"]["name"].endswith("-ui")]


def test_the_web_page_has_the_storage_read_only_and_the_certificate(render: Render) -> None:
    manifests = render(VARIANTS["web page"])
    pod = only(manifests, "Deployment", "-ui")["spec"]["template"]["spec"]
    [page] = pod["containers"]
    assert page["args"][-2:] == ["--certificate=/etc/muster/certificate", "--history=/history"]
    assert {each["name"]: each.get("readOnly", False) for each in page["volumeMounts"]} == {
        "authority": True,
        "certificate": True,
        "history": True,
        "tmp": False,
    }
    assert next(each for each in pod["volumes"] if each["name"] == "history")["persistentVolumeClaim"]["readOnly"]
    [rule] = only(manifests, "NetworkPolicy", "-ui")["spec"]["ingress"]
    assert rule["from"] == VARIANTS["web page"]["ui"]["from"]
    plain = only(render({"ui": {"enabled": True}}), "Deployment", "-ui")["spec"]["template"]["spec"]["containers"][0]
    assert plain["args"][-1] == "--authority=/etc/muster/authority/ca.crt"
    assert plain["livenessProbe"]["httpGet"]["scheme"] == "HTTP"


def test_the_web_page_reads_histories_from_a_bucket(render: Render) -> None:
    ui = {"enabled": True, "historyBucket": "s3://checkpoints/runs", "historySecret": "bucket", "historyPorts": [9000]}
    manifests = render({"ui": ui})
    [page] = only(manifests, "Deployment", "-ui")["spec"]["template"]["spec"]["containers"]
    assert page["args"][-1] == "--history=s3://checkpoints/runs"
    assert page["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    ports = [[port["port"] for port in rule["ports"]] for rule in only(manifests, "NetworkPolicy", "-ui")["spec"]["egress"]]
    assert ports[-1] == [9000]
    assert ports[:-1] == [
        [port["port"] for port in rule["ports"]]
        for rule in only(render({"ui": {"enabled": True}}), "NetworkPolicy", "-ui")["spec"]["egress"]
    ]
    for wrong in ({**ui, "historyClaim": "checkpoints"}, {**ui, "historyBucket": ""}, {**ui, "historyBucket": "gs://x"}):
        with pytest.raises(AssertionError, match=r"ui.*history"):
            render({"ui": wrong})
