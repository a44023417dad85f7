"""Jobs of Kubeflow's operators: PyTorchJob, TFJob, MPIJob and TrainJob, and HyperPod's PyTorchJob."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.tools.convert.job import LIMITS, Conversion, ConvertError, count, mapping, mappings, write_limits
from muster.tools.convert.pods import Template, add_variables, differences, write_role
from muster.tools.convert.programs import Program, without_launcher, write

Document = Mapping[str, Any]
_QUEUE = "kueue.x-k8s.io/queue-name"
_ROLES = ("Master", "Chief", "Worker", "PS", "Evaluator", "Launcher")


def pytorch_job(job: Conversion, document: Document, _: Sequence[Document]) -> None:
    """`kubeflow.org/v1 PyTorchJob`. Master and Worker become one role, because rank 0 is worker-0."""
    spec = mapping(document.get("spec"), "spec")
    replicas = _replicas(spec, "pytorchReplicaSpecs")
    _require_known(replicas, ("Master", "Worker"), "pytorchReplicaSpecs")
    job.set("strategy", "DDP")
    total = sum(count(each.get("replicas"), f"pytorchReplicaSpecs.{name}.replicas") for name, each in replicas.items())
    template = _one_template(job, replicas, ("Worker", "Master"), "pytorchReplicaSpecs", ("pytorch",))
    write_workers(job, template, total, processes=spec.get("nprocPerNode"))
    elastic = mapping(spec.get("elasticPolicy"), "spec.elasticPolicy")
    _elastic(job, elastic, total)
    _run_policy(job, mapping(spec.get("runPolicy"), "spec.runPolicy"))
    job.unmapped(spec, ("pytorchReplicaSpecs", "nprocPerNode", "elasticPolicy", "runPolicy"), "spec")


def hyperpod_job(job: Conversion, document: Document, _: Sequence[Document]) -> None:
    """`sagemaker.amazonaws.com HyperPodPyTorchJob`."""
    spec = mapping(document.get("spec"), "spec")
    groups = mappings(spec.get("replicaSpecs"), "spec.replicaSpecs")
    if not groups:
        raise ConvertError("spec.replicaSpecs: is required: it lists the groups of pods")
    job.set("strategy", "DDP")
    total = sum(count(each.get("replicas"), f"spec.replicaSpecs[{index}].replicas") for index, each in enumerate(groups))
    named = {str(each.get("name") or index): each for index, each in enumerate(groups)}
    template = _one_template(job, named, tuple(named), "spec.replicaSpecs", ("pytorch",))
    write_workers(job, template, total, processes=spec.get("nprocPerNode"))
    policy = mapping(spec.get("runPolicy"), "spec.runPolicy")
    _run_policy(job, {**policy, "backoffLimit": policy.get("jobMaxRetryCount", policy.get("backoffLimit"))})
    job.unmapped(spec, ("replicaSpecs", "nprocPerNode", "runPolicy"), "spec")


def tf_job(job: Conversion, document: Document, _: Sequence[Document]) -> None:
    """`kubeflow.org/v1 TFJob`. The programs keep their TF_CONFIG."""
    spec = mapping(document.get("spec"), "spec")
    replicas = _replicas(spec, "tfReplicaSpecs")
    if "Master" in replicas:
        replicas["Chief"] = replicas.pop("Master")
    _require_known(replicas, ("Chief", "Worker", "PS", "Evaluator"), "tfReplicaSpecs")
    counts = {name: count(each.get("replicas"), f"tfReplicaSpecs.{name}.replicas") for name, each in replicas.items()}
    names = ("tensorflow",)
    if "PS" in replicas:
        job.set("strategy", "ParameterServer")
        workers = counts.get("Worker", 0)
        if "Chief" not in replicas and workers > 1:
            job.note("spec.roles.chief", "was worker 0, which a TFJob without a Chief treats as the chief")
            workers, counts["Chief"] = workers - 1, 1
        template = _one_template(job, replicas, ("Worker", "Chief", "PS"), "tfReplicaSpecs", names)
        _write_program(job, template)
        for role, source in (("chief", "Chief"), ("worker", "Worker"), ("ps", "PS")):
            if number := (workers if source == "Worker" else counts.get(source, 0)):
                write_role(job, role, _template(replicas.get(source) or replicas["Worker"], f"tfReplicaSpecs.{source}", names), number)
        job.note("spec.strategy", "ParameterServer starts your program in every role; it must read TF_CONFIG, as below the TFJob")
    else:
        job.set("strategy", "MultiWorkerMirrored")
        total = counts.get("Chief", 0) + counts.get("Worker", 0)
        template = _one_template(job, replicas, ("Worker", "Chief"), "tfReplicaSpecs", names)
        write_workers(job, template, total)
        if "Chief" in replicas:
            job.note("spec.roles.worker", "has the chief as worker-0: TF_CONFIG names it worker 0, not chief")
    if "Evaluator" in replicas:
        write_role(job, "evaluator", _template(replicas["Evaluator"], "tfReplicaSpecs.Evaluator", names), counts["Evaluator"])
    _run_policy(job, mapping(spec.get("runPolicy"), "spec.runPolicy"))
    job.unmapped(spec, ("tfReplicaSpecs", "runPolicy"), "spec")


def mpi_job(job: Conversion, document: Document, _: Sequence[Document]) -> None:
    """MPIJob of v1 and v2beta1. mpirun itself is Muster's part; the program below it is the user's."""
    spec = mapping(document.get("spec"), "spec")
    replicas = _replicas(spec, "mpiReplicaSpecs")
    _require_known(replicas, ("Launcher", "Worker"), "mpiReplicaSpecs")
    slots = count(spec.get("slotsPerWorker"), "spec.slotsPerWorker")
    names = ("mpi", "launcher", "worker")
    launcher = _template(replicas.get("Launcher") or {}, "mpiReplicaSpecs.Launcher", names)
    worker = _template(replicas.get("Worker") or {}, "mpiReplicaSpecs.Worker", names)
    number = count(mapping(replicas.get("Worker"), "mpiReplicaSpecs.Worker").get("replicas"), "mpiReplicaSpecs.Worker.replicas")
    job.set("strategy", "MPI")
    program = without_launcher([*launcher.command, *launcher.args])
    _image(job, worker if worker.container.get("image") else launcher)
    write(job, program)
    write_role(job, "launcher", launcher, 1)
    fields = write_role(job, "worker", worker, number)
    if slots > 1:
        fields["processesPerReplica"] = slots
    if program.launcher == "mpirun":
        job.note("spec.trainer", "is the program below mpirun: Muster runs mpirun itself, without sshd")
        total = (number + bool(spec.get("runLauncherAsWorker"))) * slots
        if program.total is not None and program.total != total:
            job.note("spec.roles", f"have {total} slots, and the job ran mpirun with -np {program.total}")
    for role in job.spec["roles"].values():
        add_variables(role, program.variables)
    policy = mapping(spec.get("runPolicy"), "spec.runPolicy")
    _run_policy(job, {"cleanPodPolicy": spec.get("cleanPodPolicy"), **policy})
    if spec.get("runLauncherAsWorker"):
        job.spec["roles"]["launcher"]["processesPerReplica"] = slots
    if (kind := spec.get("mpiImplementation")) not in (None, "OpenMPI"):
        job.note("spec.mpiImplementation", f"is {kind}; Muster runs Open MPI, so build the program with Open MPI")
    known = ("mpiReplicaSpecs", "slotsPerWorker", "runPolicy", "cleanPodPolicy", "runLauncherAsWorker", "mpiImplementation")
    job.unmapped(spec, known, "spec")


def train_job(job: Conversion, document: Document, others: Sequence[Document]) -> None:
    """`trainer.kubeflow.org/v1alpha1 TrainJob`, with its runtime if the file has it."""
    spec = mapping(document.get("spec"), "spec")
    reference = mapping(spec.get("runtimeRef"), "spec.runtimeRef")
    runtime = _runtime(job, reference, others)
    policy = mapping(runtime.get("mlPolicy"), "mlPolicy")
    trainer = mapping(spec.get("trainer"), "spec.trainer")
    if "mpi" in policy or str(reference.get("name", "")).startswith(("deepspeed", "mlx")):
        job.note("spec.strategy", "is DDP, whose processes get torchrun's variables; the runtime used mpirun")
    job.set("strategy", "DDP")
    nodes = count(trainer.get("numNodes", policy.get("numNodes")), "spec.trainer.numNodes")
    template = _runtime_template(runtime)
    processes = trainer.get("numProcPerNode", mapping(policy.get("torch"), "mlPolicy.torch").get("numProcPerNode"))
    given: dict[str, Any] = {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
    container: dict[str, Any] = {**template.container, **given}
    if resources := trainer.get("resourcesPerNode"):
        container["resources"] = resources
    if env := trainer.get("env"):
        container["env"] = [*mappings(container.get("env"), "env"), *mappings(env, "spec.trainer.env")]
    template.container = container
    write_workers(job, template, nodes, processes=processes)
    _inputs(job, mapping(spec.get("initializer"), "spec.initializer"))
    for name in ("podTemplateOverrides", "podSpecOverrides"):
        _overrides(job, mappings(spec.get(name), f"spec.{name}"), name)
    write_limits(job, spec)
    known = ("runtimeRef", "trainer", "initializer", "podTemplateOverrides", "podSpecOverrides", "suspend", "labels", "annotations")
    job.unmapped(spec, known, "spec")


def _runtime(job: Conversion, reference: Mapping[str, Any], others: Sequence[Document]) -> Mapping[str, Any]:
    kinds, name = ("ClusterTrainingRuntime", "TrainingRuntime"), reference.get("name")
    for each in others:
        if each.get("kind") in kinds and mapping(each.get("metadata"), "metadata").get("name") == name:
            return mapping(each.get("spec"), f"{each['kind']} spec")
    job.note(
        "spec.runtimeRef", f"the file does not have the runtime {name}; put it behind the TrainJob (---) to convert its image and pods"
    )
    return {}


def _runtime_template(runtime: Mapping[str, Any]) -> Template:
    jobs = mappings(
        mapping(mapping(runtime.get("template"), "template").get("spec"), "template.spec").get("replicatedJobs"), "replicatedJobs"
    )
    chosen = next((each for each in jobs if each.get("name") in ("node", "trainer")), jobs[-1] if jobs else {})
    inner = mapping(mapping(chosen.get("template"), "replicatedJobs[].template").get("spec"), "replicatedJobs[].template.spec")
    return Template(inner.get("template"), "replicatedJobs[].template.spec.template", ("node", "trainer"))


def _inputs(job: Conversion, initializer: Mapping[str, Any]) -> None:
    found = []
    for name in ("dataset", "model"):
        part = mapping(initializer.get(name), f"spec.initializer.{name}")
        source = part.get("storageUri")
        if not source:
            continue
        source = str(source)
        if name == "dataset" and source.startswith("hf://") and not source.startswith("hf://datasets/"):
            source = source.replace("hf://", "hf://datasets/", 1)
        item: dict[str, Any] = {"name": name, "source": source}
        if secret := mapping(part.get("secretRef"), f"spec.initializer.{name}.secretRef").get("name"):
            item["secretRef"] = {"name": secret}
        found.append(item)
        job.note(f"spec.inputs.{name}", f"is in the folder that MUSTER_INPUT_{name.upper()} names, not in /workspace/{name}")
    if found:
        job.set("inputs", found)


def _overrides(job: Conversion, overrides: Sequence[Mapping[str, Any]], name: str) -> None:
    role = job.spec["roles"]["worker"]
    for each in overrides:
        spec = mapping(each.get("spec"), f"spec.{name}[].spec") or {
            key: value for key, value in each.items() if key not in ("targetJobs", "metadata")
        }
        kept = {key: value for key, value in spec.items() if key not in ("containers", "initContainers")}
        role.setdefault("template", {}).setdefault("spec", {}).update(kept)
        for container in mappings(spec.get("containers"), f"spec.{name}[].containers"):
            job.note(f"spec.{name}", f"changes the container {container.get('name')}; write it into spec.roles.worker.template, as trainer")


def _replicas(spec: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    found = {str(key): mapping(value, f"spec.{name}.{key}") for key, value in mapping(spec.get(name), f"spec.{name}").items()}
    if not found:
        raise ConvertError(f"spec.{name}: is required: it has the replicas of each role")
    by_name = {each.lower(): each for each in _ROLES}
    return {by_name.get(key.lower(), key): value for key, value in found.items()}


def _require_known(replicas: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    if unknown := sorted(set(replicas) - set(known)):
        raise ConvertError(f"spec.{where}.{unknown[0]}: is not a replica type; write {', '.join(known)}")


def _template(replica: Mapping[str, Any], where: str, names: Sequence[str]) -> Template:
    return Template(replica.get("template"), f"{where}.template", names)


def _one_template(
    job: Conversion, replicas: Mapping[str, Mapping[str, Any]], order: Sequence[str], where: str, names: Sequence[str]
) -> Template:
    """The template of the first role of `order` that exists. Notes in what the others differ."""
    found = [(name, _template(replicas[name], f"{where}.{name}", names)) for name in order if name in replicas]
    (first, template), *rest = found
    for name, other in rest:
        if changed := differences(template, other):
            job.note(f"{where}.{name}", f"differs from {first} in {', '.join(changed)}; the job has those of {first} for both")
    return template


def _image(job: Conversion, template: Template) -> None:
    if image := template.container.get("image"):
        job.set("trainer.image", str(image))
    else:
        job.note("spec.trainer.image", "the file names no image, so the installation's trainer image is used")


def _write_program(job: Conversion, template: Template) -> Program:
    command = template.command
    program = without_launcher([*command, *template.args] if command else [])
    _image(job, template)
    write(job, program, () if command else template.args)
    return program


def write_workers(job: Conversion, template: Template, replicas: int, processes: Any = None) -> None:
    """Writes the program and the role worker of a job whose pods all run the same, with as many processes in each replica as before."""
    program = _write_program(job, template)
    fields = write_role(job, "worker", template, replicas)
    if program.launcher == "torchrun":
        job.note("spec.trainer.script", "is the program below torchrun: Muster starts the processes, and sets what torchrun would set")
        least, _, most = (program.nodes or "").partition(":")
        if least.isdecimal() and most.isdecimal():
            _was_elastic(job, int(least), int(most))
        if program.restarts is not None:
            job.set("recovery.application.limit", program.restarts)
    chosen = program.processes if program.processes is not None else processes
    if isinstance(chosen, int) or (isinstance(chosen, str) and chosen.isdecimal()):
        if int(chosen) > 1 or template.accelerators > 1:
            fields["processesPerReplica"] = int(chosen)
    elif program.launcher != "torchrun" and chosen is None and template.accelerators > 1:
        fields["processesPerReplica"] = 1
        job.note("spec.roles.worker.processesPerReplica", "is 1, as before; remove it to get one process for each accelerator")


def _was_elastic(job: Conversion, least: int, most: int) -> None:
    fields = f"elastic: {{minReplicas: {least}, maxReplicas: {most}}}"
    job.note("spec.roles.worker.replicas", f"is fixed; for {fields}, write batch.globalSize too, the samples of a step")


def _elastic(job: Conversion, policy: Mapping[str, Any], total: int) -> None:
    if not policy:
        return
    least = count(policy.get("minReplicas"), "spec.elasticPolicy.minReplicas", default=total)
    most = count(policy.get("maxReplicas"), "spec.elasticPolicy.maxReplicas", default=total)
    _was_elastic(job, max(1, least), max(most, total))
    if "maxRestarts" in policy:
        job.set("recovery.application.limit", count(policy["maxRestarts"], "spec.elasticPolicy.maxRestarts"))
    if "nProcPerNode" in policy:
        job.spec["roles"]["worker"]["processesPerReplica"] = count(policy["nProcPerNode"], "spec.elasticPolicy.nProcPerNode")
    job.unmapped(
        policy,
        (
            "minReplicas",
            "maxReplicas",
            "maxRestarts",
            "nProcPerNode",
            "rdzvBackend",
            "rdzvPort",
            "rdzvHost",
            "rdzvId",
            "rdzvConf",
            "standalone",
        ),
        "spec.elasticPolicy",
    )


def _run_policy(job: Conversion, policy: Mapping[str, Any]) -> None:
    write_limits(job, policy)
    if policy.get("cleanPodPolicy"):
        job.set("cleanPodPolicy", policy["cleanPodPolicy"])
    scheduling = mapping(policy.get("schedulingPolicy"), "spec.runPolicy.schedulingPolicy")
    for source, path in (("queue", "scheduling.queue"), ("priorityClass", "scheduling.priorityClassName")):
        if scheduling.get(source):
            job.set(path, scheduling[source])
    if scheduling:
        job.set("scheduling.gang", "Required")
    job.unmapped(scheduling, ("queue", "priorityClass", "minAvailable", "minResources"), "spec.runPolicy.schedulingPolicy")
    known = ("cleanPodPolicy", "schedulingPolicy", "managedBy", "jobMaxRetryCount", *LIMITS)
    job.unmapped({key: value for key, value in policy.items() if value is not None}, known, "spec.runPolicy")


def write_queue(job: Conversion) -> None:
    """Moves the label of Kueue's queue into the spec."""
    if queue := job.labels.pop(_QUEUE, None):
        job.set("scheduling.queue", str(queue))
