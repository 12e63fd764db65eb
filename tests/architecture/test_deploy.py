"""The deployment files, as far as they can be proved without a Docker daemon."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from shared.settings import Settings, refuse_unknown

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILES = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
TOOLS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load(COMPOSE.read_text())["services"]


def seconds(text):
    return int(text.removesuffix("s"))


def test_compose_is_valid():
    command = [TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_is_clean(dockerfile):
    done = subprocess.run([TOOLS / "hadolint", dockerfile], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout


def test_compose_knows_our_settings(services):
    for service in services.values():
        refuse_unknown(service.get("environment", {}))


def test_what_drains_gets_the_time_for_it(services):
    settings = Settings.of({})

    assert seconds(services["gateway"]["stop_grace_period"]) > settings.gateway.drain_s
    assert seconds(services["worker"]["stop_grace_period"]) > settings.worker.drain_s


def test_gateway_and_worker_can_be_scaled(services):
    """No fixed name, no single host port, and nobody starts before the broker answers."""
    for name in ("gateway", "worker", "worker-gpu"):
        service = services[name]
        assert "container_name" not in service
        assert all("-" in port.rsplit(":", 1)[0] for port in service.get("ports", []))
        assert service["depends_on"] == {"redis": {"condition": "service_healthy"}}


def test_the_broker_keeps_what_it_accepted(services):
    command = services["redis"]["command"]

    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert services["redis"]["volumes"]
    assert services["redis"]["healthcheck"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_nobody_special_and_watches_itself(dockerfile):
    text = dockerfile.read_text()
    last_stage = text[text.rindex("\nFROM ") :]

    assert "\nUSER 10001\n" in last_stage
    assert "\nHEALTHCHECK " in last_stage
    assert '\nENTRYPOINT ["python", "-P", "-m", "' in last_stage


def test_the_gateway_image_has_no_torch():
    text = (ROOT / "deploy" / "docker" / "gateway.Dockerfile").read_text()

    assert ".whl)[gateway]" in text
    assert "torch==" not in text


def test_the_gate_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
