"""The four services of the mesh and the kit they share.

session keeps the log, harness is the brain, sandbox gives hands to work with, vault_proxy uses credentials.
They meet only on the wire: import-linter holds the boundary.
"""
