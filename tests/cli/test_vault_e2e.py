"""`handmesh vault` on a real mesh: an account is connected by a browser, tried, used and destroyed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from handmesh.launcher.ports import free_base
from tests.support.oauth import oauth_server
from tests.support.oauth_codes import CodeServer, browse

pytestmark = [pytest.mark.e2e, pytest.mark.bwrap]
MOST_SECONDS = 100


@contextlib.contextmanager
def mcp_server(oauth: CodeServer) -> Iterator[str]:
    """An MCP server that takes the authorization server's accesses only."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            said = {"resource": url, "authorization_servers": [oauth.issuer]}
            self.say(200 if "oauth-protected-resource" in self.path else 404, said)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not oauth.accepts(self.headers.get("Authorization")):
                return self.say(401, {}, {"WWW-Authenticate": "Bearer"})
            results: dict[str, Any] = {
                "initialize": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "1"},
                },
                "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
            }
            if body.get("method") not in results:
                return self.say(202 if "id" not in body else 400, {})
            return self.say(200, {"jsonrpc": "2.0", "id": body["id"], "result": results[body["method"]]})

        def say(self, status: int, said: dict[str, Any], headers: dict[str, str] | None = None) -> None:
            content = json.dumps(said).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    url = f"http://127.0.0.1:{listener.server_address[1]}/mcp"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    yield url
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a mesh that may call loopback."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "HANDMESH"))}
    data = str(tmp_path_factory.mktemp("mesh"))
    return {**kept, "HANDMESH_DATA_DIR": data, "HANDMESH_OUTBOUND_ALLOW": "127.0.0.1"}


def command(environment: dict[str, str], *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `handmesh` to its end."""
    line = [sys.executable, "-m", "handmesh.cli", *arguments]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS, input=text)


@pytest.fixture(scope="module")
def mesh(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """A mesh that runs."""
    up = command(environment, "up", "--detach", "--port-base", str(free_base()))
    assert up.returncode == 0, up.stderr
    yield environment
    assert command(environment, "down", "--release").returncode == 0


def come_back(redirect_uri: str, brought: dict[str, str]) -> int:
    """Follows the redirect, as the browser does; returns the answer's status."""
    parts = urlsplit(redirect_uri)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    connection.request("GET", f"{parts.path}?{urlencode(brought)}")
    status = connection.getresponse().status
    connection.close()
    return status


def test_an_account_from_the_browser_to_its_end(mesh: dict[str, str]) -> None:
    """Connected through a real callback, kept in OpenBao, tried with the session service's voucher, and destroyed."""
    with oauth_server(CodeServer) as oauth, mcp_server(oauth) as url:
        line = [sys.executable, "-m", "handmesh.cli", "vault", "connect", url, "--no-browser", "--json"]
        with subprocess.Popen(line, env=mesh, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as connecting:
            assert connecting.stderr is not None
            told: list[str] = []
            while not (told and re.match(r"http\S+/authorize\?", told[-1])):
                told.append(connecting.stderr.readline())
                assert told[-1], told
            back = browse(told[-1].strip())
            redirect_uri = oauth.pages[0]["redirect_uri"]
            assert come_back(redirect_uri, {**back, "state": "x"}) == 404
            assert come_back(redirect_uri, back) == 200
            output, errors = connecting.communicate(timeout=MOST_SECONDS)
        assert connecting.returncode == 0, errors
        credential = json.loads(output)
        assert credential["mcpOauth"]["resource"] == url
        grant = oauth.grants[0]
        assert not any(secret in output + errors for secret in (grant.access, grant.refresh, back["code"]))
        tried = command(mesh, "vault", "validate", credential["credentialId"])
        assert tried.returncode == 0, tried.stderr
        assert tried.stdout == "valid: the MCP server takes it; tools that it lists: 1\n"
        grant.ended = True
        assert command(mesh, "vault", "validate", credential["credentialId"]).returncode == 1
        archived = command(mesh, "vault", "archive", credential["credentialId"], "--yes")
        assert archived.returncode == 0, archived.stderr
        assert command(mesh, "vault", "credentials", "default", "--json").stdout == ""
        assert oauth.complaints == []


def test_a_fixed_value_is_tried(mesh: dict[str, str]) -> None:
    """Added from standard input; what it opens is not there: the reason is another than that it is refused."""
    assert command(mesh, "vault", "create", "fixed").returncode == 0
    added = command(mesh, "vault", "add", "fixed", "http://127.0.0.1:1", "--json", text="canary-e2e\n")
    assert added.returncode == 0 and "canary-e2e" not in added.stdout + added.stderr
    tried = command(mesh, "vault", "validate", json.loads(added.stdout)["credentialId"])
    assert (tried.returncode, tried.stdout.partition(":")[0]) == (1, "SERVER_UNAVAILABLE")
