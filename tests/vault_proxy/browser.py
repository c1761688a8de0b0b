"""A browser without a person: it keeps cookies, follows redirects, and fills in the forms that it finds."""

from __future__ import annotations

import http.cookiejar
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

MOST_PAGES = 20


@dataclass
class Form(HTMLParser):
    """The form of a page: where it goes, and what its fields hold."""

    action: str = ""
    fields: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.action = said.get("action", "")
        elif tag == "input" and "name" in said:
            self.fields[said["name"]] = said.get("value", "")


class _Still(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def agree(url: str, redirect_uri: str, typed: dict[str, str]) -> dict[str, str]:
    """Opens a page, logs in and agrees to all that is asked; returns what the redirect to `redirect_uri` brings."""
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    opener = urllib.request.build_opener(_Still, cookies, urllib.request.ProxyHandler({}))
    body: bytes | None = None
    for _ in range(MOST_PAGES):
        try:
            with opener.open(urllib.request.Request(url, body), timeout=20) as answer:
                form = Form()
                form.feed(answer.read().decode())
        except urllib.error.HTTPError as answer:
            with answer:
                assert answer.code in (302, 303), answer.read().decode()
                url, body = urljoin(url, answer.headers["Location"]), None
            if url.startswith(f"{redirect_uri}?"):
                return dict(parse_qsl(urlsplit(url).query))
            continue
        assert form.action, "a page without a form"
        url = urljoin(url, form.action)
        body = urlencode({**form.fields, **{name: typed[name] for name in form.fields if name in typed}}).encode()
    raise AssertionError("it asks for ever")
