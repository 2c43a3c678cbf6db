"""The container file and deploy/compose.yaml agree with each other, with Kubernetes and with the host."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import jsonschema
import pytest
import yaml

from foqs.config import load_config
from scripts.lock_files import EXTRAS, ROOT

_CONTAINERFILE = (ROOT / "deploy/Containerfile").read_text()
_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_SETTINGS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
_DEPENDS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "required": ["condition"],
        "additionalProperties": False,
        "properties": {"condition": {"enum": ["service_healthy", "service_completed_successfully"]}},
    },
}
_SERVICE: dict[str, Any] = {
    "type": "object",
    "required": ["image"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string"},
        "hostname": {"type": "string"},
        "command": _TEXTS,
        "environment": _SETTINGS,
        "ports": _TEXTS,
        "volumes": _TEXTS,
        "tmpfs": _TEXTS,
        "cap_drop": _TEXTS,
        "security_opt": _TEXTS,
        "depends_on": _DEPENDS,
        "read_only": {"type": "boolean"},
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "stop_grace_period": {"type": "string", "pattern": r"^\d+s$"},
        "healthcheck": {
            "type": "object",
            "required": ["test", "interval", "timeout", "retries"],
            "additionalProperties": False,
            "properties": {
                "test": _TEXTS,
                "interval": {"type": "string"},
                "timeout": {"type": "string"},
                "retries": {"type": "integer"},
            },
        },
    },
}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string"},
        "services": {"type": "object", "additionalProperties": _SERVICE},
        "volumes": {"type": "object"},
    },
}
"""The part of the Compose Specification that compose.yaml uses. It is closed, so a misspelt key is found."""


def _compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())  # type: ignore[no-any-return]


def _version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def test_compose_has_the_keys_of_its_specification() -> None:
    jsonschema.validate(_compose(), _SCHEMA)


def test_a_misspelt_key_is_found() -> None:
    compose = _compose()
    compose["services"]["host-1"]["depend_on"] = compose["services"]["host-1"].pop("depends_on")
    with pytest.raises(jsonschema.ValidationError, match="depend_on"):
        jsonschema.validate(compose, _SCHEMA)


def test_all_ask_for_the_image_of_this_version() -> None:
    (image,) = yaml.safe_load((ROOT / "deploy/kubernetes/kustomization.yaml").read_text())["images"]
    named = {one["image"] for one in _compose()["services"].values() if one["image"].startswith("foqs")}
    assert named == {f"{image['newName']}:{image['newTag']}"} == {f"foqs:{_version()}"}
    for name in ("deploy/Containerfile", "deploy/compose.yaml"):
        assert f"--tag foqs:{_version()}" in (ROOT / name).read_text()


def test_the_container_file_agrees_with_kubernetes() -> None:
    pods = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/statefulset.yaml").read_text()))
    pod = pods[0]["spec"]["template"]["spec"]
    context = pod["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in _CONTAINERFILE
    exposed = re.search(r"^EXPOSE (.*)$", _CONTAINERFILE, re.MULTILINE)
    assert exposed
    assert [int(port) for port in exposed[1].split()] == [
        port["containerPort"] for port in pod["containers"][0]["ports"]
    ]
    assert 'ENTRYPOINT ["/opt/foqs/bin/foqs"]' in _CONTAINERFILE
    assert "STOPSIGNAL SIGTERM" in _CONTAINERFILE
    assert _CONTAINERFILE.count("FROM ${BASE}") == 2


def test_the_image_installs_what_the_lock_of_hosts_has() -> None:
    assert "'foqs[zookeeper,console]'" in _CONTAINERFILE
    assert "--no-index" in _CONTAINERFILE
    assert EXTRAS["host"] == ("host", "zookeeper", "console"), "zookeeper has the extra host in it"
    script = (ROOT / "scripts/image.sh").read_text()
    assert "--require-hashes" in script
    assert "requirements/host.lock" in script


def test_the_hosts_of_compose_have_settings_that_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOQS_CONFIG", raising=False)
    services = _compose()["services"]
    advertised, databases = set(), []
    for name in ("host-1", "host-2"):
        with monkeypatch.context() as patch:
            for key, value in services[name]["environment"].items():
                patch.setenv(key, value)
            config = load_config().config
        assert config.advertise_address == config.host_name == services[name]["hostname"] == name
        assert services[name]["ports"][0].endswith(f":{config.port}")
        assert config.metrics_port == 9600
        advertised.add(f"{config.advertise_address}:{config.metrics_port}")
        databases.append((config.meta_url, config.shards))
    assert databases[0] == databases[1]
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/compose.yml").read_text())
    targets = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    assert set(targets) == advertised
    for key in ("FOQS_META_URL", "FOQS_SHARDS"):
        assert services["schema"]["environment"][key] == services["host-1"]["environment"][key]


def test_what_services_of_compose_name_exists() -> None:
    compose = _compose()
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", {})) <= set(compose["services"]), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / "deploy" / source).exists(), volume
            else:
                assert source in compose["volumes"], volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "nobody else reaches what is open"
