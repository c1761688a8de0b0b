"""The quickstart of docs/clients.md: makes a session, and prints its text as it comes."""

from __future__ import annotations

import os

from mesh_client import Mesh

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2 import Preview


def main(api_key: str) -> None:
    """Follows the session until its turn has ended."""
    with Mesh("127.0.0.1:7401", api_key) as mesh:
        session = mesh.create(SessionConfig(system="Be brief."), "List the files.")
        for it in session.watch(previews=True):
            if isinstance(it, Preview):
                print(it.text, end="", flush=True)
            elif it.HasField("turn_ended"):
                break


if __name__ == "__main__":
    main(os.environ["HANDMESH_API_KEY"])
