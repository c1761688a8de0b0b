"""A client of a mesh on the generated stubs alone, for programs without an event loop.

    with Mesh("127.0.0.1:7401", api_key) as mesh:
        session = mesh.create(SessionConfig(system="Be brief."), "List the files.")
        for it in session.watch(previews=True):
            ...

Read in this order: `errors`, `link`, `cursor`, `session`, `mesh`. (`handmesh.client` is the client for asyncio.)
"""

from mesh_client.errors import MeshError
from mesh_client.mesh import Mesh
from mesh_client.session import Session

__all__ = ["Mesh", "MeshError", "Session"]
