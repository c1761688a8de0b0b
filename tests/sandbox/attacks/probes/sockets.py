"""Connects to every unix socket that it can find below FOLDER, or guess: `sockets.py FOLDER ABSTRACT PATH...`.

Prints which answered, as JSON.
"""

import json
import os
import socket
import stat
import sys

GUESSES = [
    *("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket"),
    *("/run/systemd/private", "/run/handmesh-door/io/runner.sock", "/run/mh/git.sock"),
]
paths = [*GUESSES, *sys.argv[3:]]
for folder, names, files in os.walk(sys.argv[1]):
    if folder == "/":
        names[:] = [name for name in names if name not in ("proc", "sys", "usr")]
    for name in files:
        try:
            if stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode):
                paths.append(os.path.join(folder, name))
        except OSError:
            pass
paths += [f"/proc/{process}/root{path}" for process in (1, os.getppid()) for path in paths]
answered = []
for address in [f"\0{sys.argv[2]}", *paths]:
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(address)
            answered.append(address.replace("\0", "@"))
        except OSError:
            pass
print(json.dumps(answered))
