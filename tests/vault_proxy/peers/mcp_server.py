"""An MCP server of MCP's own Python library that asks an authorization server about each access.

python mcp_server.py PORT ISSUER SECRET
"""

import sys

import httpx
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.fastmcp import FastMCP
from pydantic import AnyHttpUrl

port, issuer, secret = int(sys.argv[1]), sys.argv[2], sys.argv[3]
resource = f"http://127.0.0.1:{port}/mcp"


class Introspection:
    """Asks the authorization server (RFC 7662) whether an access is good, and what for."""

    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(
                f"{issuer}/token/introspection", data={"token": token}, auth=("mcp-server", secret)
            )
        said = answer.json()
        if answer.status_code != 200 or not said.get("active"):
            return None
        return AccessToken(
            token=token,
            client_id=said["client_id"],
            scopes=said.get("scope", "").split(),
            expires_at=said.get("exp"),
            resource=said.get("aud"),
        )


server = FastMCP(
    "notes",
    host="127.0.0.1",
    port=port,
    log_level="WARNING",
    token_verifier=Introspection(),
    auth=AuthSettings(
        issuer_url=AnyHttpUrl(issuer),
        resource_server_url=AnyHttpUrl(resource),
        required_scopes=["read"],
        validate_token_resource=True,
    ),
)


@server.tool()
def shout(text: str) -> str:
    """Says it louder."""
    return text.upper()


server.run(transport="streamable-http")
