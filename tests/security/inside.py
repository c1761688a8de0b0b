"""What an attacker in a sandbox says to a door: bytes as they like, each on a connection of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from tests.security.ground import Ground

GIT_PORT, EGRESS_PORT = 8417, 8418  # where the doors are inside of a sandbox, as nothing else listens there

_SPEAKER = """
import base64, concurrent.futures, json, re, socket, sys

def whole(answer):  # a door that has refused reads on for a while, as its client may
    head, there, body = answer.partition(b"\\r\\n\\r\\n")
    length = re.search(rb"(?i)content-length: (\\d+)", head)
    return bool(there and (body.endswith(b"0\\r\\n\\r\\n") or length and len(body) >= int(length[1])))

def say(data):
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20)
    answer = b""
    try:
        connection.sendall(base64.b64decode(data))
        while not whole(answer) and (part := connection.recv(65536)):
            answer += part
    except OSError as problem:
        answer = answer or type(problem).__name__.encode()
    connection.close()
    return answer[:2000].decode("latin-1")

told = json.load(open(sys.argv[2]))
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(json.dumps(dict(zip(told, pool.map(say, told.values())))))
"""


async def says(ground: Ground, sandbox_id: str, requests: Mapping[str, bytes], port: int = GIT_PORT) -> dict[str, str]:
    """Says each request to a door from inside of a sandbox, and returns the beginning of each answer, by name."""
    told = json.dumps({name: base64.b64encode(data).decode() for name, data in requests.items()})
    program = base64.b64encode(_SPEAKER.encode()).decode()
    pieces = [told[at : at + 60_000] for at in range(0, len(told), 60_000)]
    for piece in pieces:
        await ground.run(sandbox_id, f"cat >> /tmp/told <<'END'\n{piece}\nEND\ntruncate -s -1 /tmp/told")
    command = f"echo {program} | base64 -d > /tmp/speaker; python3 /tmp/speaker {port} /tmp/told; rm /tmp/told"
    answer: dict[str, str] = json.loads(await ground.run(sandbox_id, command))
    return answer


def status(answer: str) -> int:
    """Returns the status of an answer; 0 when there was none."""
    first = answer.split(" ", 2)
    return int(first[1]) if len(first) > 1 and first[1].isdigit() else 0


def get(target: str, *headers: str, method: str = "GET", version: str = "HTTP/1.1") -> bytes:
    """Makes a request without a body."""
    return "\r\n".join([f"{method} {target} {version}", "Host: git", *headers, "", ""]).encode("latin-1")
