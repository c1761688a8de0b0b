"""What `compose/compose.yaml` runs before and beside a mesh in containers: `python -m handmesh.launcher.containers`.

`files` runs once, before all else: it makes what the parts log in and listen with, and gives each part its own. `vault`
runs beside OpenBao: it initialises it, lays it out, and unseals it whenever it was started again. They are the
launcher's own steps; what differs is that every part has a file system of its own. Read `parts`, then `making`.
"""
