"""Asks an MCP server, and the authorization server that it names, what they are. See `core/metadata`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from services.kit.errors import Denied, Unavailable
from services.kit.logs import Log
from services.kit.origin import Allowed, UrlRefused, origin_of
from services.vault_proxy.core import metadata
from services.vault_proxy.core.metadata import UNSUPPORTED, AuthorizationServer, Challenge, Resource, Unconnectable
from services.vault_proxy.outbound import Answer, Failure, NoAnswer, Outbound
from services.vault_proxy.secret import Secret

ASK_SECONDS = 10.0  # for one question

_JSON = {"accept": "application/json"}
_MCP = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "handmesh", "version": "1"},
    },
}

_log = Log("services.vault_proxy.connecting")
T = TypeVar("T")


async def challenge(outbound: Outbound, url: str) -> Challenge:
    """Returns how an MCP server asks for an access: nothing, if it does not say.

    Raises Denied (`SERVER_ADDRESS_DENIED`) or Unavailable (`SERVER_UNAVAILABLE`).
    """
    host = origin_of(url).host
    try:
        answer = await outbound.send("POST", url, _MCP, Secret(json.dumps(_HELLO).encode()), seconds=ASK_SECONDS)
    except UrlRefused as refused:
        raise Denied("SERVER_ADDRESS_DENIED", f"the MCP server may not be called: {refused}", server=host) from None
    except NoAnswer as problem:
        if problem.failure is Failure.DENIED:
            message = "the address of the MCP server is not one that may be called"
            raise Denied("SERVER_ADDRESS_DENIED", message, server=host) from None
        if problem.failure is Failure.UNREACHABLE:
            raise Unavailable("SERVER_UNAVAILABLE", "the MCP server cannot be reached", server=host) from None
        return Challenge()  # it answered something that goes on: it may have metadata all the same
    return metadata.challenge_of(answer.headers.get("www-authenticate", "")) if answer.status == 401 else Challenge()


async def resource(outbound: Outbound, url: str, challenged: Challenge) -> Resource:
    """Returns an MCP server's metadata. Raises Unconnectable."""
    places = metadata.resource_metadata_urls(url, challenged)
    found = await _first(outbound, places, lambda body: metadata.resource_of(body, url))
    if found is None:
        raise Unconnectable(UNSUPPORTED, "the MCP server publishes no protected-resource metadata at its own origin")
    return found


async def server(outbound: Outbound, issuer: str, allowed: Allowed) -> AuthorizationServer:
    """Returns an authorization server's metadata. Raises Unconnectable."""
    metadata.check_issuer(issuer, allowed)
    places = metadata.server_metadata_urls(issuer)
    found = await _first(outbound, places, lambda body: metadata.server_of(body, issuer, allowed))
    if found is None:
        raise Unconnectable(UNSUPPORTED, "the authorization server publishes no metadata, or does not answer")
    return found


async def _first(outbound: Outbound, places: Sequence[str], read: Callable[[Secret[bytes]], T | None]) -> T | None:
    """Returns what the first place has that has something. A redirect is nothing: it is not followed."""
    for place in places:
        answer = await _get(outbound, place)
        found = read(answer.body) if answer is not None and answer.status == 200 else None
        if found is not None:
            return found
    return None


async def _get(outbound: Outbound, url: str) -> Answer | None:
    try:
        return await outbound.send("GET", url, _JSON, seconds=ASK_SECONDS)
    except (UrlRefused, NoAnswer) as problem:
        _log.info("metadata is not answered", kind=type(problem).__name__)
        return None
