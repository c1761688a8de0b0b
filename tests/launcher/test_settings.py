"""What each service is told, and what it is not."""

from pathlib import Path

import pytest

from handmesh.launcher.ports import SERVICES, Ports
from handmesh.launcher.settings import Claude, MeshSettings, Scripted, service_environment

DATA = Path("/data")

CALLER = {
    "PATH": "/bin",
    "HOME": "/home/u",
    "LANG": "C.UTF-8",
    "ANTHROPIC_API_KEY": "canary-key",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
}

COMMON = {
    "PATH": "/bin",
    "HOME": "/home/u",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "HANDMESH_DATA_DIR": "/data",
    "HANDMESH_LOG_LEVEL": "info",
}


def settings(**changes: object) -> MeshSettings:
    """Returns the settings of a mesh on /data that talks to the real model."""
    given = {"data_directory": DATA, "model": Claude("canary-key"), "caller_environment": CALLER} | changes
    return MeshSettings(**given)  # type: ignore[arg-type]


def test_session_is_told_of_its_store_alone() -> None:
    """The session service has the only NATS credentials, and the only file of clients' keys."""
    assert service_environment("session", settings()) == COMMON | {
        "HANDMESH_LISTEN": "127.0.0.1:7411",
        "HANDMESH_CLIENT_LISTEN": "127.0.0.1:7401",
        "HANDMESH_TLS_DIR": "/data/tls/session",
        "HANDMESH_API_KEYS_FILE": "/data/api_keys.json",
        "HANDMESH_NATS_URL": "nats://127.0.0.1:7420",
        "HANDMESH_NATS_CREDENTIALS_FILE": "/data/nats/session.json",
        "HANDMESH_NATS_MONITOR_URL": "http://127.0.0.1:7421",
        "HANDMESH_VAULT_ISSUER_KEY_FILE": "/data/openbao/issuer.pem",
    }


def test_harness_is_told_of_the_other_services_and_the_model() -> None:
    """The harness has the only path to the model's key."""
    assert service_environment("harness", settings()) == COMMON | {
        "HANDMESH_LISTEN": "127.0.0.1:7412",
        "HANDMESH_CLIENT_LISTEN": "127.0.0.1:7402",
        "HANDMESH_TLS_DIR": "/data/tls/harness",
        "HANDMESH_SESSION_ADDRESS": "127.0.0.1:7411",
        "HANDMESH_SANDBOX_ADDRESS": "127.0.0.1:7413",
        "HANDMESH_VAULT_PROXY_ADDRESS": "127.0.0.1:7414",
        "HANDMESH_MODEL_KEY_FILE": "/data/model/key",
        "HANDMESH_CAPACITY": "100",
    }


def test_sandbox_is_told_where_its_hands_keep_their_state() -> None:
    """An environments file is named only when there is one."""
    expected = COMMON | {
        "HANDMESH_LISTEN": "127.0.0.1:7413",
        "HANDMESH_CLIENT_LISTEN": "127.0.0.1:7403",
        "HANDMESH_TLS_DIR": "/data/tls/sandbox",
        "HANDMESH_STATE_DIR": "/data/sandbox",
        "HANDMESH_SESSION_ADDRESS": "127.0.0.1:7411",
        "HANDMESH_VAULT_PROXY_ADDRESS": "127.0.0.1:7414",
    }
    assert service_environment("sandbox", settings()) == expected
    named = service_environment("sandbox", settings(environments_file=Path("/etc/environments.toml")))
    assert named == expected | {"HANDMESH_ENVIRONMENTS_FILE": "/etc/environments.toml"}


def test_vault_proxy_is_told_of_the_vault_alone() -> None:
    """vault_proxy has the only path to the vault's AppRole."""
    assert service_environment("vault_proxy", settings()) == COMMON | {
        "HANDMESH_LISTEN": "127.0.0.1:7414",
        "HANDMESH_CLIENT_LISTEN": "127.0.0.1:7404",
        "HANDMESH_DOOR_LISTEN": "127.0.0.1:7415",
        "HANDMESH_VAULT_PROXY_DOOR_CA_CERT_FILE": "/data/tls/doors/ca.pem",
        "HANDMESH_VAULT_PROXY_DOOR_CA_KEY_FILE": "/data/tls/doors/key.pem",
        "HANDMESH_TLS_DIR": "/data/tls/vault_proxy",
        "HANDMESH_SESSION_ADDRESS": "127.0.0.1:7411",
        "HANDMESH_VAULT_URL": "http://127.0.0.1:7430",
        "HANDMESH_VAULT_APPROLE_FILE": "/data/openbao/approle.json",
        "HANDMESH_VAULT_MOUNT": "handmesh",
    }


def test_replicas_have_ports_and_state_of_their_own_and_are_known_to_all() -> None:
    """Whoever calls a service is told of all its replicas; a sandbox replica has its own folder and is told which it
    is; a vault proxy logs in by itself, and knows the others."""
    ports = Ports.of_replicas(7400, 2)
    two = settings(ports=ports[0], others=ports[1:])
    harness = [service_environment("harness", two, replica) for replica in (0, 1)]
    assert [each["HANDMESH_LISTEN"] for each in harness] == ["127.0.0.1:7412", "127.0.0.1:7462"]
    assert {each["HANDMESH_SESSION_ADDRESS"] for each in harness} == {"127.0.0.1:7411,127.0.0.1:7461"}
    assert {each["HANDMESH_MODEL_KEY_FILE"] for each in harness} == {"/data/model/key"}
    second = service_environment("sandbox", two, 1)
    assert second["HANDMESH_STATE_DIR"] == "/data/sandbox-2"
    assert second["HANDMESH_NODE"] == "127.0.0.1:7463"
    assert second["HANDMESH_SANDBOX_PEERS"] == "127.0.0.1:7413,127.0.0.1:7463"
    proxy = service_environment("vault_proxy", two, 1)
    assert proxy["HANDMESH_VAULT_PROXY_REPLICAS"] == "127.0.0.1:7414"
    assert proxy["HANDMESH_VAULT_APPROLE_FILE"] == "/data/openbao/approle-2.json"
    assert service_environment("session", two, 1)["HANDMESH_NATS_URL"] == "nats://127.0.0.1:7420"
    assert two.services[3:5] == ["vault_proxy", "session-2"] and len(two.listened_on) == 14 + 9


@pytest.mark.parametrize("service", SERVICES)
def test_no_secret_of_the_caller_reaches_a_service(service: str) -> None:
    """Neither the model's key nor anything else of the caller's environment is in a child's."""
    assert "canary" not in str(service_environment(service, settings()))
    assert "canary" not in repr(settings())


@pytest.mark.parametrize(
    ("model", "url"),
    [
        (Claude("k", "https://proxy.example"), "https://proxy.example"),
        (Scripted(Path("demo.yaml")), "http://127.0.0.1:7440"),
    ],
)
def test_the_real_and_the_scripted_model_differ_by_address_only(model: Claude | Scripted, url: str) -> None:
    """The harness takes the same path for both."""
    real = service_environment("harness", settings())
    assert service_environment("harness", settings(model=model)) == real | {"HANDMESH_MODEL_BASE_URL": url}


def test_a_relative_import_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Children run elsewhere and must import the same modules as their launcher."""
    monkeypatch.chdir(tmp_path)
    caller = CALLER | {"PYTHONPATH": ".:/opt/lib"}
    environment = service_environment("session", settings(caller_environment=caller))
    assert environment["PYTHONPATH"] == f"{tmp_path}:/opt/lib"


def test_extra_variables_reach_the_named_service_only() -> None:
    """A test or an operator may set one service's further settings."""
    given = settings(extra={"harness": {"HANDMESH_CAPACITY": "1"}})
    assert service_environment("harness", given)["HANDMESH_CAPACITY"] == "1"
    assert "HANDMESH_CAPACITY" not in service_environment("sandbox", given)


def test_a_configuration_file_is_handed_on_and_says_what_the_launcher_was_not_asked_for() -> None:
    """Its path becomes absolute; what the launcher has to say, addresses and paths, still counts before it."""
    caller = CALLER | {"HANDMESH_CONFIG_FILE": "mesh.toml"}
    plain, filed = (service_environment("harness", settings(caller_environment=who)) for who in (CALLER, caller))
    gone = ("HANDMESH_CAPACITY", "HANDMESH_LOG_LEVEL")
    assert filed == {name: value for name, value in plain.items() if name not in gone} | {
        "HANDMESH_CONFIG_FILE": str(Path("mesh.toml").absolute())
    }
    asked = service_environment("harness", settings(caller_environment=caller, capacity=7, log_level="debug"))
    assert [asked[name] for name in gone] == ["7", "debug"]
