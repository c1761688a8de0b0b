"""The four services of the mesh and the kit they share.

session keeps the log, harness is the brain, sandbox gives hands to work with, vault_proxy uses credentials.
They meet only on the wire: import-linter holds the boundary.
"""

import os

# gRPC reads this when it is imported. Its fork handlers would run in every child that uvloop forks, before the child's
# own program: they abort the child, or write into this process's connections. No child of ours calls gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # noqa: TID251
