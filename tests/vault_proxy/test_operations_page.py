"""docs/vault-operations.md, run as it stands: its commands set a fresh OpenBao up, turn every key, seal it, save and
restore it, and vault_proxy's store works with it all along."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from handmesh.launcher.openbao import find_bao
from handmesh.launcher.ports import free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.launcher.vault_operator import SESSION_POLICY
from services.kit.errors import Unavailable
from services.vault_proxy.stores.hashicorp.store import HashicorpStore
from tests.support.requirements import require
from tests.vault_proxy.bao import SessionPass

pytestmark = pytest.mark.vault

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "vault-operations.md").read_text()
VAULT_ID, CREDENTIAL_ID = "vault_00000000000000000000000001", "cred_00000000000000000000000001"
SECRET = f"tenants/default/secrets/{VAULT_ID}/{CREDENTIAL_ID}"


def blocks(heading: str) -> list[str]:
    """Returns the commands below a heading: each run of lines that are set in by four."""
    _, _, rest = PAGE.partition(f"\n## {heading}\n")
    section = rest.partition("\n## ")[0]
    assert section, heading
    found = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", section, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


@dataclass
class Operator:
    """Somebody at a shell, in a folder with the files of docs/vault. Variables last from one block to the next."""

    folder: Path
    port: int
    store: HashicorpStore
    process: Process | None = None
    ran: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where the vault is."""
        return f"https://127.0.0.1:{self.port}"

    def run(self, commands: str, **variables: str) -> str:
        """Runs a block, with the page's hosts replaced by this one."""
        self.ran.append(commands)
        script = "set -euo pipefail\n. ./variables\n" + commands.replace("10.0.0.7", "127.0.0.1")
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "BAO_ADDR": self.url,
            "BAO_CACERT": str(self.folder / "cert.pem"),
            **variables,
        }
        kept = "\ndeclare -p id role_id 2>/dev/null > variables || true\n"
        done = subprocess.run(
            ["bash", "-c", script + kept], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    async def start(self) -> None:
        """Starts the server with the page's configuration, and waits until it answers."""
        arguments = [str(self.folder / "bin" / "bao"), "server", "-config=bao.hcl"]
        self.process = Process.start(Command("bao", arguments, {}, self.folder / "bao.log", self.folder))

        async def answers() -> bool:
            return self.process is not None and self.process.listens(self.port)

        await self.process.ready(answers, within=30)

    def open(self, root: str) -> None:
        """Two people open it. Returns when it is active."""
        shares = json.loads((self.folder / "init.json").read_text())["unseal_keys_b64"]
        for share in shares[:2]:
            self.run(blocks("The server")[1], share=share)
        while subprocess.run(  # standing by, for a moment
            [str(self.folder / "bin" / "bao"), "secrets", "list"],
            env={"BAO_ADDR": self.url, "BAO_CACERT": str(self.folder / "cert.pem"), "BAO_TOKEN": root},
            capture_output=True,
        ).returncode:
            pass


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    """An operator with an empty server that runs."""
    require("vault")
    (port, cluster_port) = free_ports(2)
    for file in (DOCS / "vault").iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bao").symlink_to(find_bao())
    (tmp_path / "variables").touch()
    for folder in ("store", "log", "audit"):
        (tmp_path / folder).mkdir()
    url = f"https://127.0.0.1:{port}"
    who = Operator(tmp_path, port, HashicorpStore(url, "handmesh", tmp_path / "approle.json", tmp_path / "cert.pem"))
    who.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem "
        "-days 2 -subj /CN=vault -addext subjectAltName=IP:127.0.0.1 2>/dev/null"
    )
    (configuration,) = re.findall(r"```hcl\n(.*?)```", PAGE, re.DOTALL)
    for here, there in (
        ("10.0.0.8:8200", f"127.0.0.1:{port}"),
        ("10.0.0.8:8201", f"127.0.0.1:{cluster_port}"),
        ("/srv/bao/store", str(tmp_path / "store")),
        ("/etc/bao", str(tmp_path)),
        ("/var/log/bao", str(tmp_path / "log")),
        ("/srv/audit", str(tmp_path / "audit")),
    ):
        assert here in configuration, here
        configuration = configuration.replace(here, there)
    # The default multiplier waits long for a leader, of which there is only one here.
    quick = configuration.replace('"one"', '"one"\n  performance_multiplier = "1"')
    (tmp_path / "bao.hcl").write_text(quick)
    await who.start()
    yield who
    await who.store.close()
    assert who.process is not None
    await who.process.kill()


async def test_the_page_from_its_first_command_to_its_last(operator: Operator) -> None:
    """Each command works, in the page's order. After laying out, and after each turn, a session's secret is read with
    the session service's newest key, and with no other."""
    folder = operator.folder
    operator.run(blocks("The server")[0])
    root = json.loads((folder / "init.json").read_text())["root_token"]
    operator.open(root)
    for block in blocks("Laying it out"):
        operator.run(block, BAO_TOKEN=root)
    store = operator.store

    async def read(key: str) -> str:
        document = await store.read_secret(SECRET, SessionPass(folder / key, "default", (VAULT_ID,)))
        assert document is not None
        return document.fields.reveal()["value"]

    async def writes() -> bool:
        """Says whether vault_proxy's own login works."""
        path = f"tenants/default/vaults/{VAULT_ID}/about"
        return await store.write(path, {"name": "v"}, await store.version(path)) > 0

    (login,) = blocks("A login for vault_proxy")
    operator.run(login, BAO_TOKEN=(folder / "operator-token").read_text().strip())
    assert await writes()
    for token in ("old", "new"):  # by hand, a first time; then the page replaces it
        (folder / "token.txt").write_text(token)
        command = blocks("Rotating")[0] if token == "new" else blocks("Rotating")[0].replace("bao kv destroy", ": ")
        operator.run(command, BAO_TOKEN=root)
        assert await read("issuer.pem") == token
    _, revoking, role_id, key = blocks("Rotating")
    operator.run(revoking, BAO_TOKEN=root)
    with pytest.raises(Unavailable):
        await writes()
    operator.run(login, BAO_TOKEN=root)
    operator.run(role_id, BAO_TOKEN=root)
    with pytest.raises(Unavailable):  # that login was issued before
        await writes()
    operator.run(login, BAO_TOKEN=root)
    assert await writes()
    first, both, alone = re.split(r"(?m)^(?=bao write auth/handmesh/config)", key)
    operator.run(first + both, BAO_TOKEN=root)
    assert [await read("issuer.pem"), await read("newer.pem")] == ["new", "new"]
    operator.run(alone, BAO_TOKEN=root)
    assert await read("newer.pem") == "new"
    with pytest.raises(Unavailable):
        await read("issuer.pem")
    await _closed_and_restored(operator, root, read)
    everything = [block for heading in re.findall(r"(?m)^## (.*)$", PAGE) for block in blocks(heading)]
    ran = "\n".join(operator.ran)
    assert [block for block in everything if block not in ran and block is not key] == [key]
    for log in ("log/audit.log", "audit/bao.log"):
        said = (folder / log).read_text()
        assert f"handmesh/data/{SECRET}" in said
        assert not {root, '"new"'} & {word for word in (root, '"new"') if word in said}


async def _closed_and_restored(operator: Operator, root: str, read: Callable[[str], Awaitable[str]]) -> None:
    """Seals it and opens it; saves it, changes it, and has it back as it was."""
    (sealing,) = blocks("While the vault is sealed or away")
    operator.run(sealing, BAO_TOKEN=root)
    with pytest.raises(Unavailable):
        await read("newer.pem")
    operator.open(root)
    assert await read("newer.pem") == "new"
    save, restore = blocks("Backing up")
    operator.run(save, BAO_TOKEN=root)
    operator.run(f"bao policy delete {SESSION_POLICY}", BAO_TOKEN=root)
    with pytest.raises(Unavailable):
        await read("newer.pem")
    operator.run(restore, BAO_TOKEN=root)
    operator.open(root)
    assert await read("newer.pem") == "new"
