"""A git host for tests: the real `git http-backend` behind Basic auth on loopback, with LFS beside it.

Bodies stream both ways, and one that breaks off ends git's input early, as the plainest of servers would do.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from tests.support.git import git

USER = "x-access-token"
PART = 64 * 1024


@dataclass(frozen=True)
class Request:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]


Strange = Callable[[Request], tuple[int, list[tuple[str, str]], bytes] | None]


@dataclass
class GitHost:
    """A host with repositories `owner/name.git` below `folder`. `value` is what it wants; None lets all in.

    `strange` may answer a request in the place of git.
    """

    folder: Path
    value: str | None = None
    user: str = USER
    requests: list[Request] = field(default_factory=list)
    large: dict[str, bytes] = field(default_factory=dict)  # by SHA-256
    large_value: str = "large-object-value"  # what it hands out, and wants, for large objects
    strange: Strange = lambda request: None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"host": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def authority(self) -> str:
        """Returns `host:port`."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def origin(self) -> str:
        """What a credential for it is bound to."""
        return f"http://{self.authority}"

    def url(self, name: str) -> str:
        """Returns where a repository is, given as `owner/name`."""
        return f"{self.origin}/{name}"

    def make(self, name: str, *options: str) -> Path:
        """Makes a repository with a first commit on `main`, and returns its folder."""
        bare, work = self.folder / f"{name}.git", self.folder / "work" / name
        bare.mkdir(parents=True)
        git(bare, "init", "--quiet", "--bare", *options)
        git(bare, "config", "http.receivepack", "true")
        work.mkdir(parents=True)
        git(work, "init", "--quiet", *options)
        (work / "README").write_text(f"hello from {name}\n")
        git(work, "add", "--all")
        git(work, "commit", "--quiet", "--message", "first")
        git(work, "push", "--quiet", str(bare), "main")
        shutil.rmtree(work)
        return bare

    def references(self, name: str) -> dict[str, str]:
        """Returns what each of a repository's references is."""
        rows = git(self.folder / f"{name}.git", "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return dict(row.split(" ") for row in rows)

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def lets_in(self, request: Request) -> bool:
        """Says whether a request shows what the host wants."""
        if self.value is None:
            return True
        said = base64.b64encode(f"{self.user}:{self.value}".encode()).decode()
        return request.headers.get("authorization") == f"Basic {said}"


class _Handler(BaseHTTPRequestHandler):
    host: GitHost

    def _answer(self) -> None:
        names = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, names)
        self.host.requests.append(request)
        with contextlib.suppress(ConnectionError):
            strange = self.host.strange(request)
            if strange is not None:
                for _ in self._body():
                    pass
                self._say(*strange)
            elif self.path.startswith("/large/"):
                self._large(request)
            elif not self.host.lets_in(request):
                self._say(401, [("WWW-Authenticate", 'Basic realm="git"')], b"no\n")
            elif self.path.endswith("/info/lfs/objects/batch"):
                self._batch()
            else:
                self._git(request)

    def _say(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> Iterator[bytes]:
        """Yields the body's parts, until it ends or breaks off."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().strip() or b"0", 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length", 0))
        while left and (part := self.rfile.read1(min(left, PART))):
            left -= len(part)
            yield part

    def _git(self, request: Request) -> None:
        path, _, query = request.path.partition("?")
        env = {
            "PATH": "/usr/bin:/bin",
            "GIT_PROJECT_ROOT": str(self.host.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "somebody",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
        }
        backend = subprocess.Popen(["git", "http-backend"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert backend.stdin is not None and backend.stdout is not None
        output = cast("io.BufferedReader", backend.stdout)
        with backend, backend.stdin, output:
            feeding = threading.Thread(target=self._feed, args=(backend.stdin,))
            feeding.start()
            status, headers = 200, []
            while line := output.readline().strip().decode():
                name, _, value = line.partition(": ")
                if name == "Status":
                    status = int(value.split()[0])
                else:
                    headers.append((name, value))
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while part := output.read1(PART):
                    self.wfile.write(part)
            while output.read1(PART):
                pass
            feeding.join()

    def _feed(self, stdin: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            for part in self._body():
                stdin.write(part)
        with contextlib.suppress(OSError):
            stdin.close()

    def _batch(self) -> None:
        asked = json.loads(b"".join(self._body()))
        operation = asked["operation"]
        objects = []
        for each in asked["objects"]:
            place: dict[str, Any] = {
                "href": f"{self.host.origin}/large/{each['oid']}",
                "header": {"Authorization": f"RemoteAuth {self.host.large_value}"},
            }
            told: dict[str, Any] = {"oid": each["oid"], "size": each["size"]}
            if operation == "download" and each["oid"] not in self.host.large:
                told["error"] = {"code": 404, "message": "not here"}
            elif operation == "download":
                told["actions"] = {"download": place}
            else:
                told["actions"] = {"upload": place, "verify": {**place, "href": place["href"] + "/verify"}}
            objects.append(told)
        said = json.dumps({"transfer": "basic", "objects": objects}).encode()
        self._say(200, [("Content-Type", "application/vnd.git-lfs+json")], said)

    def _large(self, request: Request) -> None:
        body = b"".join(self._body())
        if request.headers.get("authorization") != f"RemoteAuth {self.host.large_value}":
            self._say(403, [], b"no\n")
            return
        oid = request.path.split("/")[2]
        if request.method == "PUT":
            self.host.large[oid] = body
        if request.method == "POST" and json.loads(body) != {"oid": oid, "size": len(self.host.large[oid])}:
            self._say(422, [], b"no\n")
            return
        self._say(200, [("Content-Type", "application/octet-stream")], self.host.large.get(oid, b""))

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
