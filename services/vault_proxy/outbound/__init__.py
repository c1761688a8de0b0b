"""The only package that opens outbound HTTP: resolve, check, pin, then send what is allowed to be sent.

network     looks a name up, refuses if any of its addresses may not be called, dials an address that it has checked
transport   one origin's connections: its headers both ways, its credential, its failures
bodies      answers up to a number of bytes
exchange    what happened on the wire for one call
client      `Outbound`: clients for MCP servers, and single requests

What holds for all of it: only https, or http to a host of the development allow-list; no redirect is followed, and no
answer's `location` gets in; proxies of the environment are not used; no compression is offered or taken; the
credential is added at the last moment, after everything that could log or raise a request.

Imported on first use: httpx2 costs 70 ms and 16 MB. OpenBao alone is called past it (`stores/hashicorp`): its address
is the operator's own setting.
"""

from services.vault_proxy.outbound.bodies import BODY_BYTES, STREAM_BYTES, BodyRefused
from services.vault_proxy.outbound.client import Answer, Client, NoAnswer, Outbound
from services.vault_proxy.outbound.exchange import Exchange, Failure, observe
from services.vault_proxy.outbound.transport import STANDING_STREAMS

__all__ = [
    "BODY_BYTES",
    "STANDING_STREAMS",
    "STREAM_BYTES",
    "Answer",
    "BodyRefused",
    "Client",
    "Exchange",
    "Failure",
    "NoAnswer",
    "Outbound",
    "observe",
]
