"""Tries to reach the network: `reach.py TCP UDP [only-loopback]`, two ports of the host's loopback.

Prints what it reached, as JSON.
"""

import json
import socket
import sys

tcp, udp = int(sys.argv[1]), int(sys.argv[2])
targets = [("127.0.0.1", tcp), ("::1", tcp), ("localhost", tcp)]
if "only-loopback" not in sys.argv:  # said outside of sandboxes: no packet shall leave the machine
    targets += [("172.17.0.1", tcp), ("10.0.2.2", tcp), ("169.254.169.254", 80), ("192.0.2.1", 443), ("fd00::1", 443)]
    targets += [("pypi.invalid", 443)]
reached = []
for address in targets:
    try:
        socket.create_connection(address, timeout=2).close()
        reached.append(list(address))
    except OSError:
        pass
for host in ("127.0.0.1",) if "only-loopback" in sys.argv else ("127.0.0.1", "172.17.0.1", "192.0.2.53"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(2)
        try:
            datagrams.connect((host, udp))
            datagrams.send(b"x")
            datagrams.send(b"x")  # the second tells whether anybody listens
            reached.append([host, "udp"])
        except OSError:
            pass
with open("/proc/net/dev") as file:
    interfaces = [line.split(":")[0].strip() for line in file if ":" in line]
with open("/proc/net/route") as file:
    routes = len(file.readlines()) - 1
try:
    with open("/etc/resolv.conf") as file:
        resolvers = [line.split()[1] for line in file if line.startswith("nameserver")]
except OSError:
    resolvers = []
print(json.dumps({"reached": reached, "interfaces": interfaces, "routes": routes, "resolvers": resolvers}))
