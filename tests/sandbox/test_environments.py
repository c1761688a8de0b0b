"""Environments: what a file may say, and how its mistakes are told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from services.kit.errors import Invalid
from services.sandbox import backends
from services.sandbox.environments import BUILT_IN, SIZES, EnvironmentsError, load, parse
from services.sandbox.hand import Limits, Network, Recipe
from services.sandbox.networks import described

BACKENDS = backends.keys()


def test_backends_are_the_folders() -> None:
    """A folder under hands/ is a backend, and nothing else names it."""
    assert {"bubblewrap", "docker", "process", "remote"} == backends.names() == set(BACKENDS)


def test_without_a_file_there_are_the_built_in_ones() -> None:
    """The default one isolates; no name means the default one."""
    found = load(None, BACKENDS)
    assert found is BUILT_IN and {recipe.backend for recipe in found.recipes.values()} == set(BACKENDS) - {"remote"}
    assert found.recipe("").backend == "bubblewrap"


def test_a_remote_environment_names_a_hand() -> None:
    """Its name, labels that its workers must have, and tools that are its own; no other backend takes the keys."""
    table = '[environments.phone]\nbackend = "{}"\nworker = "pixel"\n{}[environments.phone.labels]\nroom = "4"\n'
    found = parse(table.format("remote", 'tools = ["tap"]\n'), "f.toml", BACKENDS).recipe("phone")
    assert (found.worker, found.labels, found.tools) == ("pixel", {"room": "4"}, ("tap",))
    with pytest.raises(EnvironmentsError) as wrong:
        parse(table.format("docker", ""), "f.toml", BACKENDS)
    assert "environments.phone.worker" in str(wrong.value) and "environments.phone.labels" in str(wrong.value)
    with pytest.raises(EnvironmentsError):
        parse(table.replace('"4"', "4").format("remote", ""), "f.toml", BACKENDS)


def test_a_file_adds_and_replaces() -> None:
    """Every key of a recipe arrives; units are those that the key names."""
    text = """
default = "build"
[environments.build]
backend = "docker"
description = "Builds"
image = "my/image:1"
runtime = "runsc"
packages = ["make", "g++", "python3=3.11.2-1+b1"]
setup = ["useradd x"]
network = "none"
tools = ["bash", "read"]
[environments.build.env]
CI = "1"
[environments.build.limits]
memory_mib = 2048
cpus = 0.5
processes = 100
disk_mib = 10
open_files = 400
seconds = 1.5
output_text_kib = 1
output_file_mib = 2
output_total_mib = 3
"""
    found = parse(text, "f.toml", BACKENDS)
    limits = Limits(2 << 30, 0.5, 100, 10 << 20, 400, 1.5, 1 << 10, 2 << 20, 3 << 20)
    expected = Recipe(
        name="build",
        backend="docker",
        description="Builds",
        image="my/image:1",
        runtime="runsc",
        packages=("make", "g++", "python3=3.11.2-1+b1"),
        setup=("useradd x",),
        env={"CI": "1"},
        tools=("bash", "read"),
        limits=limits,
    )
    assert found.recipe("") == found.recipe("build") == expected
    assert found.recipe("default") == BUILT_IN.recipes["default"]


def test_a_size_is_refined_by_limits() -> None:
    """A size stands for limits; those that are given besides take the place of its own. No size is the medium one."""
    text = "[environments.{0}]\nbackend = 'docker'\nsize = '{0}'\nlimits = {{ cpus = 3 }}\n"
    found = parse("".join(map(text.format, SIZES)) + "[environments.plain]\nbackend = 'docker'\n", "f.toml", BACKENDS)
    assert {name: found.recipe(name).limits for name in SIZES} == {
        name: replace(limits, cpus=3.0) for name, limits in SIZES.items()
    }
    assert found.recipe("plain").limits == SIZES["medium"] == Limits()
    assert SIZES["small"].memory_bytes < SIZES["medium"].memory_bytes < SIZES["large"].memory_bytes


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("image = 'x'", "image is nothing for the backend bubblewrap, expected only with docker"),
        ("packages = ['gcc']", "packages is nothing for the backend bubblewrap, expected only with docker"),
        ("setup = ['true']", "setup is nothing for the backend bubblewrap, expected only with docker"),
        ("runtime = 'runsc'", "runtime is nothing for the backend bubblewrap, expected only with docker"),
        ("network = 'github'", "network is 'github', expected 'none', or a table with allow, allow_package_managers"),
        ("network = { open = true }", "network.open is unknown, expected one of allow, allow_package_managers"),
        ("network = { allow = ['https://a.b'] }", "network.allow is ['https://a.b'], expected a list of names"),
        ("network = { allow = ['*.*.b'] }", "network.allow is ['*.*.b'], expected a list of names or *.names"),
        ("network = { allow = ['a.b:70000'] }", "network.allow is ['a.b:70000'], expected a list of names"),
        ("network = { allow = ['A.b'] }", "network.allow is ['A.b'], expected a list of names or *.names in lower"),
        ("network = { allow_mcp_servers = 1 }", "network.allow_mcp_servers is 1, expected true or false"),
        ("size = 'huge'", "size is 'huge', expected one of small, medium, large"),
        ("size = 1", "size is 1, expected a text"),
    ],
)
def test_what_cannot_be_done_is_told_at_load(line: str, told: str) -> None:
    """A key that the backend would ignore, a network policy that nobody can enforce, a size that there is not."""
    with pytest.raises(EnvironmentsError) as error:
        parse(f"[environments.a]\nbackend = 'bubblewrap'\n{line}\n", "f.toml", BACKENDS)
    assert str(error.value).splitlines()[0].startswith(f"f.toml: environments.a.{told}")


@pytest.mark.parametrize("name", ["-y", "a b", "", "$(x)", "a;b", "x" * 200, 7])
def test_a_package_is_a_name(name: object) -> None:
    """Nothing that an installer or a shell could take for something else."""
    text = f"[environments.a]\nbackend = 'docker'\npackages = [{json.dumps(name)}]\n"
    with pytest.raises(EnvironmentsError, match=r"environments\.a\.packages is .* expected a list of names"):
        parse(text, "f.toml", BACKENDS)


def test_all_mistakes_are_told_at_once() -> None:
    """Each line names the file, the key, the value and what was expected."""
    text = """
default = "nowhere"
colour = 1
[environments.Bad]
backend = "docker"
[environments.a]
backend = "podman"
image = 7
size = "big"
packages = "gcc"
setup = [""]
tools = ["bash", "sudo"]
env = { "A B" = "1", OK = 2 }
limits = { memory_mib = 1, cpus = 0, processes = true, seconds = "1", fuel = 1 }
[environments]
b = 3
"""
    with pytest.raises(EnvironmentsError) as told:
        parse(text.replace("[environments]\nb = 3", ""), "f.toml", BACKENDS)
    lines = str(told.value).splitlines()
    assert all(line.startswith("f.toml: ") and "expected" in line for line in lines)
    for key in (
        *("default is 'nowhere'", "colour is unknown", "environments.Bad", "environments.a.backend is 'podman'"),
        *(
            "environments.a.image is 7",
            "environments.a.size is 'big'",
            "environments.a.packages is 'gcc'",
            "environments.a.setup is ['']",
            "environments.a.tools",
            "environments.a.env.A B",
        ),
        *("environments.a.env.OK", "environments.a.limits.memory_mib is 1", "environments.a.limits.cpus is 0"),
        *("environments.a.limits.processes is True", "environments.a.limits.seconds", "environments.a.limits.fuel"),
    ):
        assert any(key in line for line in lines), key


@pytest.mark.parametrize(
    "text", ["[", "environments = 1", "[environments]\na = 1", "[environments.a]\nlimits = 1\nbackend='docker'"]
)
def test_what_has_no_form_is_told_too(text: str) -> None:
    """A file that is no TOML, or no tables, is a mistake and no crash."""
    with pytest.raises(EnvironmentsError, match=r"f\.toml"):
        parse(text, "f.toml", BACKENDS)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A folder in place of a file, and bytes that are no text."""
    (tmp_path / "bytes").write_bytes(b"\xff")
    for path in (tmp_path, tmp_path / "bytes"):
        with pytest.raises(EnvironmentsError, match="cannot be read"):
            load(path, BACKENDS)


@pytest.mark.parametrize("name", ["nowhere", "Default", "../x", "\0", "x" * 10_000, "é"])
def test_an_unknown_environment_is_refused(name: str) -> None:
    """The error names those that there are."""
    with pytest.raises(Invalid, match="ENVIRONMENT_UNKNOWN") as refused:
        BUILT_IN.recipe(name)
    assert "bubblewrap" not in str(refused.value) and "default, docker, process" in str(refused.value)


def test_what_may_be_reached_is_read_and_told() -> None:
    """A network arrives as it was written; people and models are told of it after the operator's own words."""
    text = "[environments.a]\nbackend = 'docker'\ndescription = 'Builds.'\n[environments.a.network]\n"
    text += "allow = ['a.test', '*.b.test:8443']\nallow_package_managers = true\nallow_mcp_servers = true\n"
    recipe = parse(text, "f.toml", BACKENDS).recipe("a")
    assert recipe.network == Network(("a.test", "*.b.test:8443"), True, True) and recipe.network
    reach = "a.test, *.b.test:8443, package managers' hosts, the hosts of the session's MCP servers"
    assert described(recipe) == f"Builds. Network, by HTTP only: {reach}."
    plain = parse("[environments.a]\nbackend = 'docker'\nnetwork = {}\n", "f.toml", BACKENDS).recipe("a")
    assert not plain.network and described(plain) == plain.description
