"""Real git repositories for tests, and the seeds that are made of them."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from services.sandbox.seeds import Seeds, SeedSettings
from services.sandbox.seeds_git import Git
from services.sandbox.seeds_planting import Planting
from services.sandbox.seeds_rules import Sources

AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@a"}


def git(folder: Path, *arguments: str) -> str:
    """Runs git without anybody's configuration, and returns what it says."""
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **AUTHOR}
    command = ["git", "-C", str(folder), "-c", "init.defaultBranch=main", "-c", "commit.gpgSign=false", *arguments]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


class Upstream:
    """A repository that somebody else works on."""

    def __init__(self, folder: Path) -> None:
        """Makes it, with a first commit on `main`."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.url = f"file://{folder}"
        git(folder, "init", "--quiet")
        self.first = self.commit("README", "hello\n")

    def commit(self, name: str, content: str) -> str:
        """Writes a file, commits it, and returns the commit."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(content)
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--message", name)
        return git(self.folder, "rev-parse", "HEAD")


def seeds(root: Path, allowed: Path, **settings: float) -> Seeds:
    """Makes seeds that take repositories of a folder, and ask anew each time unless told otherwise."""
    chosen = {"fresh_seconds": 0.0, **settings}
    return Seeds(root, Git(), SeedSettings(Sources(folders=(str(allowed),)), **chosen))  # type: ignore[arg-type]


def planting(root: Path) -> Planting:
    """Makes seeds that take the repositories of `<root>/upstream`."""
    return Planting(seeds(root / "seeds", root / "upstream"))


class GitServer:
    """`git http-backend` behind a web server on loopback, for the repositories of a folder."""

    def __init__(self, folder: Path) -> None:
        """Listens. `requests` are the paths that were asked for, `fetches` how often objects were."""
        self.requests: list[str] = []
        self.fetches = 0
        self.refuse_with = 0  # a status to answer everything with
        self.move_to = ""  # a place to send everybody to
        self.refused = 0  # how often for want of the password
        self.password = ""  # without which, behind Basic auth, nothing is given; who has it may push
        self.hold = threading.Event()  # sends no objects until it is set
        self.hold.set()
        self.held = threading.Event()  # set when somebody waits for it
        self._folder = folder
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"git": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_address[1]

    def url(self, upstream: Upstream) -> str:
        """Returns where a repository is."""
        return f"http://127.0.0.1:{self.port}/{upstream.folder.relative_to(self._folder)}"

    def close(self) -> None:
        """Ends it."""
        self.hold.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: _Handler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Returns what `git http-backend` says to a request."""
        path, _, query = request.path.partition("?")
        self.requests.append(request.path)
        if self.refuse_with or self.move_to:
            headers = [("Location", self.move_to + request.path)] if self.move_to else []
            return self.refuse_with or 302, headers, b""
        allowed = base64.b64encode(f"x-access-token:{self.password}".encode()).decode()
        if self.password and request.headers.get("Authorization") != f"Basic {allowed}":
            self.refused += 1
            return 401, [("WWW-Authenticate", 'Basic realm="git"')], b""
        if b"command=fetch" in body:
            self.fetches += 1
            self.held.set()
            self.hold.wait(30)
        env = {
            "PATH": "/usr/bin:/bin",
            "GIT_PROJECT_ROOT": str(self._folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            **({"REMOTE_USER": "agent"} if self.password else {}),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        }
        said = subprocess.run(["git", "http-backend"], env=env, input=body, check=True, capture_output=True).stdout
        head, _, content = said.partition(b"\r\n\r\n")
        headers = [(name, value) for name, _, value in (row.partition(": ") for row in head.decode().split("\r\n"))]
        status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
        return status, headers, content


class _Handler(BaseHTTPRequestHandler):
    git: GitServer

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, headers, content = self.git.answer(self, body)
        with contextlib.suppress(ConnectionError):  # the caller may have been killed
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
