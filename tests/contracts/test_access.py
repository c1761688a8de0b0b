"""Every method of every contract has a row in the table of who may call it."""

from __future__ import annotations

import pytest

from handmesh.harness.v1 import harness_pb2
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.session.v1 import memory_pb2, session_pb2
from handmesh.status.v1 import status_pb2
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from services.kit.access import ACCESS, HARNESS, READ, Scope
from services.kit.errors import Denied, Unauthenticated
from services.kit.identity import Caller, authorize

FILES = (session_pb2, memory_pb2, harness_pb2, sandbox_pb2, status_pb2, vault_proxy_pb2)
METHODS = sorted(
    f"/{service.full_name}/{method.name}"
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
KINDS = ("anyone", "client", "hand", "session", "harness", "sandbox", "vault_proxy", "stranger")


def test_each_method_has_a_row_and_each_row_a_method() -> None:
    """A new method without a row fails here; so does a row whose method is gone."""
    assert sorted(method for method in ACCESS if method.startswith("/handmesh.")) == METHODS


@pytest.mark.parametrize("kind", KINDS)
def test_only_who_is_in_the_row_gets_in(kind: str) -> None:
    """All methods x all identities, among them one that is not in the table at all."""
    for method in METHODS:
        try:
            authorize(Caller(kind, scope=Scope.OPERATOR), method)
        except (Denied, Unauthenticated):
            assert not {kind, "anyone"} & ACCESS[method]
        else:
            assert {kind, "anyone"} & ACCESS[method]


def test_everybody_is_told_of_nothing_but_health() -> None:
    """What needs no identity is a short list: whether a process serves, and since when."""
    told = {method for method, row in ACCESS.items() if "anyone" in row and method.startswith("/handmesh.")}
    assert told == {"/handmesh.status.v1.StatusService/GetStatus"}


def test_a_method_without_a_row_is_refused() -> None:
    """Forgetting the row closes the door; it does not open it."""
    with pytest.raises(Denied):
        authorize(Caller("client", scope=Scope.OPERATOR), "/handmesh.session.v1.SessionService/NewMethod")


def test_each_row_that_takes_clients_says_which_scope_they_need() -> None:
    """A row that is put together the wrong way round would lose the scope, and let in whoever reads."""
    assert [method for method, row in ACCESS.items() if "client" in row and row.scope is None] == []
    assert READ | HARNESS == HARNESS | READ
    assert (HARNESS | READ).scope is (READ | HARNESS).scope is Scope.READ
