"""``docs/distributed.md``: its loop runs, and its manifest has the fields that the MPI operator knows."""

import re

import pytest
import yaml

from tests import ROOT, mpi

PAGE = (ROOT / "docs/distributed.md").read_text()
(LOOP,), (MANIFEST,), (BATCH,) = (
    re.findall(rf"```{kind}(.*?)```", PAGE, re.DOTALL) for kind in ("python\n", "yaml\n", "bash\n#!/bin/bash\n")
)

# Of the CustomResourceDefinition mpijobs.kubeflow.org, v2beta1, at caa3c47 (July 2026); a set has all values allowed.
POD_FIELDS = {
    "containers": [
        {
            "name": str,
            "image": str,
            "workingDir": str,
            "command": [str],
            "args": [str],
            "env": [{"name": str, "value": str}],
            "securityContext": {"runAsUser": int},
            "readinessProbe": {"tcpSocket": {"port": int}, "initialDelaySeconds": int},
            "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
            "resources": {"limits": {"cpu": str, "memory": str, "nvidia.com/gpu": int}},
        }
    ],
    "volumes": [
        {
            "name": str,
            "persistentVolumeClaim": {"claimName": str, "readOnly": bool},
            "emptyDir": {"medium": {"", "Memory"}},
        }
    ],
}
REPLICA_FIELDS = {
    "replicas": int,
    "restartPolicy": {"Always", "OnFailure", "Never", "ExitCode"},
    "template": {"spec": POD_FIELDS},
}
JOB_FIELDS = {
    "apiVersion": {"kubeflow.org/v2beta1"},
    "kind": {"MPIJob"},
    "metadata": {"name": str},
    "spec": {
        "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
        "mpiImplementation": {"OpenMPI", "Intel", "MPICH"},
        "mpiReplicaSpecs": {"Launcher": REPLICA_FIELDS, "Worker": REPLICA_FIELDS},
        "runLauncherAsWorker": bool,
        "runPolicy": {
            "activeDeadlineSeconds": int,
            "backoffLimit": int,
            "cleanPodPolicy": {"None", "Running", "All"},
            "suspend": bool,
            "ttlSecondsAfterFinished": int,
        },
        "slotsPerWorker": int,
        "sshAuthMountPath": str,
    },
}


def _check(value, fields, path="manifest"):
    if isinstance(fields, dict):
        assert isinstance(value, dict), path
        for name, each in value.items():
            assert name in fields, f"{path}.{name}"
            _check(each, fields[name], f"{path}.{name}")
    elif isinstance(fields, list):
        assert isinstance(value, list), path
        for place, each in enumerate(value):
            _check(each, fields[0], f"{path}[{place}]")
    elif isinstance(fields, set):
        assert value in fields, path
    else:
        assert type(value) is fields, path


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 1])
def test_the_loop_trains(processes):
    """As printed, and only the first process prints it; with any number of them to the same loss."""
    done = mpi.start(processes, code=[LOOP])
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"processes: {processes}, loss ")
    printed, found = (float(re.search(r"loss ([\d.]+), loss scale 65536", text)[1]) for text in (PAGE, line))
    assert found == pytest.approx(printed, abs=2e-3)


def test_the_manifest_has_fields_that_the_operator_knows():
    job = yaml.safe_load(MANIFEST)
    _check(job, JOB_FIELDS)
    with pytest.raises(AssertionError, match=r"manifest\.spec\.mpiReplicas"):
        _check({"spec": {"mpiReplicas": {}}}, JOB_FIELDS)


def test_the_manifest_fits_together():
    spec = yaml.safe_load(MANIFEST)["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker"))
    (container,) = launcher["template"]["spec"]["containers"]
    command = container["command"]
    assert int(command[command.index("-n") + 1]) == worker["replicas"] * spec["slotsPerWorker"]
    assert launcher["replicas"] == 1
    for replica in (launcher, worker):
        pod = replica["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        mounted = {mount["name"] for each in pod["containers"] for mount in each.get("volumeMounts", [])}
        assert mounted == volumes
    assert {each["image"] for each in (container, *worker["template"]["spec"]["containers"])} == {container["image"]}


def test_all_commands_train_the_same():
    """The script's options are those of the command line, in the batch script, the manifest and on one machine."""
    manifest = yaml.safe_load(MANIFEST)["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    for command in (" ".join(manifest["command"] + manifest["args"]), BATCH, PAGE.partition("## A loop")[0]):
        assert re.search(r"scripts/train_imagenet\.py\s+(\\\s+)?--config configs/resnet50/90ep\.yaml --out ", command)
        assert "--set data.train=" in command
        assert "--set data.val=" in command
