"""For whom an access was issued, as far as that can be known."""

from __future__ import annotations

import base64
import json

from services.kit.origin import Origin, UrlRefused, origin_of


def issued_for(access: str, resource: str) -> bool:
    """Tells whether an access may be one for a resource. False only for one that says itself that it is for others.

    An access is opaque to a client. But a JWT whose audiences are all URLs of other origins opens another service: an
    MCP server that names somebody else's authorization server would get it. Names that are no URLs say nothing.
    """
    named = _audiences(access)
    origins = [_origin(each) for each in named]
    if not named or None in origins:
        return True
    return _origin(resource) in origins


def _audiences(access: str) -> list[str]:
    """Returns the audiences that an access names, without believing in them: none for one that is no JWT."""
    parts = access.split(".")
    if len(parts) != 3:
        return []
    try:
        said = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return []
    found = said.get("aud") if isinstance(said, dict) else None
    if isinstance(found, str):
        return [found]
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _origin(url: str) -> Origin | None:
    try:
        return origin_of(url)
    except UrlRefused:
        return None
