"""Says whether a service serves: `python -I -S healthy.py PORT CA_FILE` exits with 0 when it does.

It asks as any client does, gRPC's `Health/Check` on the clients' port, over TLS. A container is asked every few
seconds, and importing gRPC for that takes half a second of a processor each time; so the one question and its answer
are spelled here in HTTP/2 by hand. Standard library only.
"""

import socket
import ssl
import struct
import sys

SECONDS = 3.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
STREAM = 1
EMPTY_MESSAGE = b"\0" * 5  # not compressed, 0 bytes: the service as a whole
SERVING = b"\0\0\0\0\x02\x08\x01"  # not compressed, 2 bytes: field 1 is 1
QUESTION = (
    (":method", "POST"),
    (":scheme", "https"),
    (":path", "/grpc.health.v1.Health/Check"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


def frame(kind, flags, stream, payload=b""):
    """Returns a frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def fields(pairs):
    """Returns header fields as HPACK has them, none of them from its tables."""
    spelled = (b"\0" + bytes([len(name)]) + name.encode() + bytes([len(text)]) + text.encode() for name, text in pairs)
    return b"".join(spelled)


def exactly(line, count):
    """Reads so many bytes. Raises OSError when there are fewer."""
    got = b""
    while len(got) < count:
        part = line.recv(count - len(got))
        if not part:
            raise OSError("the service closed the connection")
        got += part
    return got


def answer(line):
    """Asks, and returns the body of the answer."""
    question = frame(HEADERS, END_HEADERS, STREAM, fields(QUESTION)) + frame(DATA, END_STREAM, STREAM, EMPTY_MESSAGE)
    line.sendall(PREFACE + frame(SETTINGS, 0, 0) + question)
    body = b""
    while True:
        head = exactly(line, 9)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        payload = exactly(line, length)
        if kind in (SETTINGS, PING) and not flags & ACK:
            line.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == DATA:
            body += payload
        if kind in (DATA, HEADERS) and (flags & END_STREAM or body):
            return body


def main():
    """Returns the exit code."""
    trusting = ssl.create_default_context(cafile=sys.argv[2])
    trusting.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=SECONDS) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            body = answer(line)
    except OSError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0 if body == SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
