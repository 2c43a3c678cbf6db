"""deploy/kubernetes is right for Kubernetes, and agrees with the host and the image."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from foqs.cli.main import cli
from foqs.config import HostConfig, load_config
from foqs.model import limits
from scripts.lock_files import ROOT
from tests.support.doc_machine import blocks
from tests.support.outside_tools import outside_tool
from tests.support.waiting import PROGRAM_S_MAX

_FOLDER = ROOT / "deploy/kubernetes"
_PAGE = ROOT / "docs/deploy-kubernetes.md"
_VERSIONS = ("1.29.0", "1.31.0", "1.34.0")
_STOP_BEYOND_DRAIN_MS = 20_000
"""The time after a drain that docs/operations.md asks of supervisors."""


def _resources(folder: Path = _FOLDER) -> list[dict[str, Any]]:
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((folder / name).read_text())]


def _resource(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in _resources() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def _host() -> dict[str, Any]:
    """The pod of a host."""
    return _resource("StatefulSet", "foqs")["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def _container(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return container  # type: ignore[no-any-return]


def _settings(name: str = "foqs.toml") -> HostConfig:
    return load_config(path=_FOLDER / name).config


def _complaint(resource: dict[str, Any], version: str) -> str:
    try:
        kubernetes_validate.validate(resource, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return ""


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOQS_CONFIG", raising=False)


@pytest.mark.parametrize("version", _VERSIONS)
def test_kubernetes_knows_each_field(version: str) -> None:
    found = {f"{one['kind']} {one['metadata']['name']}": _complaint(one, version) for one in _resources()}
    assert len(found) == 6
    assert {name: complaint for name, complaint in found.items() if complaint} == {}


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_misspelt_field_of_a_probe_is_found(version: str) -> None:
    resource = copy.deepcopy(_resource("StatefulSet", "foqs"))
    probe = _container(resource["spec"]["template"]["spec"])["readinessProbe"]
    probe["failureTreshold"] = probe.pop("failureThreshold")
    assert "failureTreshold" in _complaint(resource, version)


@pytest.mark.parametrize("folder", [_FOLDER, _FOLDER / "monitoring"], ids=lambda folder: folder.name)
def test_a_kustomization_names_each_file_of_its_folder_and_no_other(folder: Path) -> None:
    text = yaml.safe_load((folder / "kustomization.yaml").read_text())
    named = [*text["resources"], *[file for one in text.get("configMapGenerator", []) for file in one["files"]]]
    there = [path.name for path in folder.iterdir() if path.is_file() and path.name != "kustomization.yaml"]
    assert sorted(named) == sorted(there)
    assert len(set(named)) == len(named)


def test_no_label_is_added_to_selectors() -> None:
    """Kustomize would add them to those of clients too, which then did not reach a host."""
    assert {"labels", "commonLabels"} & set(yaml.safe_load((_FOLDER / "kustomization.yaml").read_text())) == set()


def test_kubectl_builds_it() -> None:
    built = _built(_FOLDER)
    (policy,) = [one for one in built if one["kind"] == "NetworkPolicy"]
    others = [source for rule in policy["spec"]["ingress"] for source in rule["from"] if "namespaceSelector" in source]
    assert [one.get("podSelector", {}).get("matchLabels") for one in others] == [{"foqs-client": "true"}, None]
    assert {one["metadata"]["namespace"] for one in built} == {"foqs"}
    (config,) = [one["metadata"]["name"] for one in built if one["kind"] == "ConfigMap"]
    pods = [one["spec"]["template"]["spec"] for one in built if one["kind"] in ("StatefulSet", "Job")]
    assert config != "foqs-config", "hosts would not be restarted after a change"
    assert [volume["configMap"]["name"] for pod in pods for volume in pod["volumes"] if "configMap" in volume] == [
        config,
        config,
    ]
    assert [one["kind"] for one in _built(_FOLDER / "monitoring")] == ["ServiceMonitor"]


def _built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [outside_tool("kubectl", "kubernetes-client", is_optional=True), "kustomize", folder],
        capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_selectors_choose_pods_that_exist() -> None:
    templates = [one["spec"]["template"]["metadata"]["labels"] for one in _resources() if "template" in one["spec"]]
    monitor = yaml.safe_load((_FOLDER / "monitoring/service-monitor.yaml").read_text())["spec"]["selector"]
    services = [
        one["metadata"]["labels"] for one in _resources() if one["kind"] == "Service" and "labels" in one["metadata"]
    ]
    hosts = _resource("StatefulSet", "foqs")["spec"]
    selectors = [
        hosts["selector"]["matchLabels"],
        hosts["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        _resource("PodDisruptionBudget", "foqs")["spec"]["selector"]["matchLabels"],
        _resource("NetworkPolicy", "foqs")["spec"]["podSelector"]["matchLabels"],
        *[_resource("Service", name)["spec"]["selector"] for name in ("foqs", "foqs-hosts")],
    ]
    for selector in selectors:
        assert [labels for labels in templates if selector.items() <= labels.items()] == [
            hosts["template"]["metadata"]["labels"]
        ]
    assert [labels for labels in services if monitor["matchLabels"].items() <= labels.items()] == services


def test_ports_and_files_are_those_of_the_configuration() -> None:
    settings, pod = _settings(), _host()
    container = _container(pod)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"thrift": settings.port, "metrics": settings.metrics_port}
    for name in ("foqs", "foqs-hosts"):
        for port in _resource("Service", name)["spec"]["ports"]:
            assert (port["targetPort"], port["port"]) == (port["name"], ports[port["name"]])
    for rule in _resource("NetworkPolicy", "foqs")["spec"]["ingress"]:
        assert {port["port"] for port in rule["ports"]} <= set(ports)
    monitor = yaml.safe_load((_FOLDER / "monitoring/service-monitor.yaml").read_text())
    assert [one["port"] for one in monitor["spec"]["endpoints"]] == ["metrics"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "metrics"


def test_the_databases_of_hosts_and_schema_are_the_same() -> None:
    hosts, schema = _settings(), _settings("schema.toml")

    def places(settings: HostConfig) -> dict[str, str]:
        urls = {"meta": settings.meta_url} | {str(shard): url for shard, url in settings.shards.items()}
        return {name: re.sub(r"//\w+@(.*)\?.*", r"\1", url) for name, url in urls.items()}

    assert places(hosts) == places(schema)
    assert set(re.findall(r"//(\w+)@", f"{hosts.meta_url} {schema.meta_url}")) == {"foqs", "foqs_schema"}


def test_the_files_that_settings_and_commands_name_are_mounted() -> None:
    job = _resource("Job", "foqs-schema")["spec"]["template"]["spec"]
    for pod, settings in ((_host(), _settings()), (job, _settings("schema.toml"))):
        container = _container(pod)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounted = set()
        for mount in container["volumeMounts"]:
            source = volumes[mount["name"]].get("configMap") or volumes[mount["name"]].get("secret") or {}
            mounted |= {f"{mount['mountPath']}/{item['path']}" for item in source.get("items", [])}
        urls = [settings.meta_url, *settings.shards.values()]
        named = {unquote(found) for url in urls for found in re.findall(r"password_file=([^&]+)", url)}
        named |= {word.partition("=")[2] for word in container["args"] if word.startswith("--config=")}
        assert named == mounted
        assert {volume["secret"]["defaultMode"] for volume in pod["volumes"] if "secret" in volume} == {0o440}
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]


def test_the_arguments_are_those_of_the_commands() -> None:
    words = [
        word.replace("$(POD_NAME)", "foqs-0").replace("$(POD_NAMESPACE)", "foqs")
        for word in _container(_host())["args"]
    ]
    assert words[:2] == ["host", "--config=/etc/foqs/foqs.toml"]
    checked = CliRunner().invoke(cli, ["config", "check", f"--config={_FOLDER}/foqs.toml", *words[2:]])
    assert checked.exit_code == 0, checked.output
    job = _container(_resource("Job", "foqs-schema")["spec"]["template"]["spec"])["args"]
    assert job == ["schema", "apply", "--config=/etc/foqs/schema.toml"]
    env = {one["name"] for one in _container(_host())["env"]}
    assert env == set(re.findall(r"\$\((\w+)\)", " ".join(_container(_host())["args"])))


def test_a_host_has_the_time_to_drain_and_its_probes_wait_long_enough() -> None:
    settings, pod = _settings(), _host()
    container = _container(pod)
    assert pod["terminationGracePeriodSeconds"] * 1_000 >= settings.drain_ms_max + _STOP_BEYOND_DRAIN_MS
    live = container["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] * 1_000 > 2 * limits.LOOP_SILENCE_MS_MAX
    assert "cpu" not in container["resources"]["limits"]


def test_the_commands_of_the_page_name_what_exists() -> None:
    text = "".join(block.text for block in blocks(_PAGE))
    named = set(re.findall(r"\b(job|statefulset)/([\w-]+)", text))
    there = {(one["kind"].lower(), one["metadata"]["name"]) for one in _resources()}
    assert named == {one for one in there if one[0] in ("job", "statefulset")}
    secrets = re.findall(r"secret generic (\S+) --from-file=(\w+)=\S+(?: \\\n)? +--from-file=(\w+)=", text)
    mounted = [
        (volume["secret"]["secretName"], volume["secret"]["items"][0]["key"])
        for one in _resources()
        if "template" in one["spec"]
        for volume in one["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    ]
    assert [(name, key) for name, *keys in secrets for key in keys] == 2 * mounted
    assert set(re.findall(r"--namespace (\S+)", text)) == {"foqs"}
    assert set(re.findall(r"exec (\S+) --", text)) == {"foqs-0"}


def test_the_commands_of_the_page_that_need_no_cluster_run() -> None:
    ran = [block for block in blocks(_PAGE) if not block.reason]
    assert [block.heading for block in ran] == ["The settings", "The users and the passwords"]
    outside_tool("kubectl", "kubernetes-client", is_optional=True)
    for block in ran:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False,
            env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) > 20, block.heading


def test_nothing_has_rights_and_all_have_one_image() -> None:
    images = set()
    for one in _resources():
        if "template" not in one["spec"]:
            continue
        pod = one["spec"]["template"]["spec"]
        container = _container(pod)
        images.add(container["image"])
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"requests", "limits"} <= set(container["resources"])
    assert images == {"foqs"}
