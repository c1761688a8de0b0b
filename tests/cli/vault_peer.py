"""Vaults in memory, on the wire: what `handmesh vault` is tested against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1 import vault_proxy_pb2_grpc

if TYPE_CHECKING:
    from tests.cli.peer import Peer

STATE = "the-state-of-this-connection"
CODE = "code-of-a-person"


class VaultPeer(vault_proxy_pb2_grpc.VaultProxyServiceServicer):
    """Keeps what it is told, secrets and all, so that tests can look."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.vaults: list[pb.Vault] = []
        self.credentials: list[pb.Credential] = []
        self.added: list[pb.AddCredentialRequest] = []
        self.started: list[pb.StartConnectionRequest] = []
        self.finished: list[pb.FinishConnectionRequest] = []
        self.tried: list[pb.ValidateCredentialRequest] = []
        self.verdict = pb.ValidateCredentialResponse(valid=True, detail="it works")

    def _living(self, vault_id, context):
        from tests.cli.peer import refuse

        self._peer._known("", context)
        if not any(each.vault_id == vault_id and not each.archived for each in self.vaults):
            refuse(context, "NOT_FOUND", "VAULT_NOT_FOUND", "no such vault", vault_id=vault_id)

    def CreateVault(self, request, context):
        self._peer._known("", context)
        made = pb.Vault(vault_id=f"vault_{len(self.vaults):026d}", name=request.name)
        made.create_time.FromSeconds(1_700_000_000)
        self.vaults.append(made)
        return pb.CreateVaultResponse(vault=made)

    def ListVaults(self, request, context):
        self._peer._known("", context)
        left = [each for each in reversed(self.vaults) if not request.page_token or each.vault_id < request.page_token]
        page, token = left[:2], left[1].vault_id if len(left) > 2 else ""
        return pb.ListVaultsResponse(vaults=page, next_page_token=token)

    def ArchiveVault(self, request, context):
        self._living(request.vault_id, context)
        next(each for each in self.vaults if each.vault_id == request.vault_id).archived = True
        return pb.ArchiveVaultResponse()

    def AddCredential(self, request, context):
        self._living(request.vault_id, context)
        self.added.append(request)
        return pb.AddCredentialResponse(credential=self._add(request.vault_id, request.origin, request.name))

    def _add(self, vault_id, origin, name):
        made = pb.Credential(
            credential_id=f"cred_{len(self.credentials):026d}",
            vault_id=vault_id,
            origin=origin,
            name=name,
            kind=pb.CREDENTIAL_KIND_STATIC_BEARER,
        )
        self.credentials.append(made)
        return made

    def ListCredentials(self, request, context):
        self._living(request.vault_id, context)
        found = [each for each in self.credentials if each.vault_id == request.vault_id]
        return pb.ListCredentialsResponse(
            credentials=[each for each in found if request.include_archived or not each.archived]
        )

    def ArchiveCredential(self, request, context):
        self._peer._known("", context)
        next(each for each in self.credentials if each.credential_id == request.credential_id).archived = True
        return pb.ArchiveCredentialResponse()

    def ValidateCredential(self, request, context):
        self._peer._known("", context)
        self.tried.append(request)
        return self.verdict

    def StartConnection(self, request, context):
        self._living(request.vault_id, context)
        self.started.append(request)
        answer = pb.StartConnectionResponse(
            authorization_url="https://as.example/page?x=1", state=STATE, issuer="https://as.example"
        )
        answer.expire_time.GetCurrentTime()
        answer.expire_time.seconds += 600
        return answer

    def FinishConnection(self, request, context):
        self._peer._known("", context)
        self.finished.append(request)
        asked = self.started[-1]
        return pb.FinishConnectionResponse(credential=self._add(asked.vault_id, "https://mcp.example", asked.name))
