"""The Python client of a handmesh.

    from handmesh.client import connect

    async with connect() as mesh:
        session = await mesh.create_session(content="List the files.")
        async for event in session.watch():
            ...

Messages are those of `handmesh.session.v1`. Read in this order: `client`, `session`, `watching`.
"""

from handmesh.client.addresses import Addresses
from handmesh.client.client import Client, connect
from handmesh.client.errors import HandmeshError
from handmesh.client.session import Session

__all__ = ["Addresses", "Client", "HandmeshError", "Session", "connect"]
