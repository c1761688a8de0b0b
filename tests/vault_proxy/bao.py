"""What a vault's operator does in these tests: sealing, unsealing, looking underneath; and whom the vault trusts."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handmesh.launcher.files import read_strings
from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from services.kit.errors import Unauthenticated
from services.session.grants import Granted
from services.session.vouching import Voucher
from services.vault_proxy.secret import Secret
from tests.support.openbao import OpenBaoServer


def call(bao: OpenBaoServer, method: str, path: str, body: object = None) -> Any:
    """Sends a request with the root token and returns the answer's JSON, None where there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", bao.port, timeout=20)
    connection.request(method, f"/v1/{path}", json.dumps(body), {"X-Vault-Token": bao.root_token})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status < 400 or answer.status == 404, (method, path, answer.status)
    return json.loads(content) if content else None


@dataclass
class SessionPass:
    """What a session service that is trusted by an OpenBao gives for one of its sessions. Implements `ports.Pass`."""

    issuer_key_file: Path
    tenant: str
    vault_ids: tuple[str, ...]
    session_id: str = field(default_factory=lambda: ids.mint("sess"))
    epoch: int = 1
    asked: int = 0
    over: bool = False  # the session has ended: nobody vouches for it

    async def voucher(self) -> Secret[str]:
        """Signs a new word, as services/session does."""
        if self.over:
            raise Unauthenticated("GRANT_INVALID", "the session is over")
        self.asked += 1
        config = SessionConfig(vault_ids=self.vault_ids)
        granted = Granted(self.session_id, self.tenant, self.epoch, 0, config)
        return Secret(Voucher.of_file(self.issuer_key_file, time.time_ns).sign(granted))


def seal(bao: OpenBaoServer) -> None:
    """Seals the vault: from now on it answers 503."""
    call(bao, "PUT", "sys/seal")


def unseal(bao: OpenBaoServer) -> None:
    """Unseals it with the key that the launcher kept, and waits until it is active."""
    key = read_strings(bao.directory / "openbao" / "keys.json")["unseal_key"]
    call(bao, "PUT", "sys/unseal", {"key": key})
    while bao.operator.health() != 200:
        pass
