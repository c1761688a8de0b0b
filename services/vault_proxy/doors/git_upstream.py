"""What the git door asks of a repository's host, with the session's credential, and what of the answer it takes.

The credential is looked up for each request, so one that is rotated works under a running session. It is in no URL, and
nothing that the host answers but git's own content goes back: no header, no redirect, no page.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.kit.errors import ServiceError
from services.kit.origin import UrlRefused
from services.vault_proxy.audit import Audit
from services.vault_proxy.core.git_rules import Repository, Rule
from services.vault_proxy.core.masking import Mask
from services.vault_proxy.doors.refusal import Refusal, unreachable
from services.vault_proxy.doors.visit import Visit
from services.vault_proxy.github_app import GithubApps
from services.vault_proxy.secret import Secret
from services.vault_proxy.wallet import Login, Wallet

if TYPE_CHECKING:
    from services.vault_proxy.outbound.streams import Received, Streams

OK, REFUSED, UNANSWERED = "ok", "CREDENTIAL_REVOKED", "SERVER_UNAVAILABLE"


@dataclass(frozen=True)
class Errand:
    """What a sandbox wants of a repository: `rules` are those for it, `url` is where its host has it.

    `headers` are those of the client that go on.
    """

    visit: Visit
    repository: Repository
    rules: tuple[Rule, ...]
    url: str
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Question:
    """A request to a repository's host: `url` is all of it, `takes` the content type of an answer that is one.

    A `body` that streams has a `length` when it is known. `authorized` by its `headers`: without the session's
    credential. `good` are the statuses of an answer.
    """

    method: str
    url: str
    takes: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None
    authorized: bool = False
    good: frozenset[int] = frozenset({200})


class Upstream:
    """Asks hosts. `streams` is called once, in a thread."""

    def __init__(self, wallet: Wallet, apps: GithubApps, audit: Audit, streams: Callable[[], Streams]) -> None:
        self._wallet = wallet
        self._apps = apps
        self._audit = audit
        self._make = streams
        self._streams: Streams | None = None

    @asynccontextmanager
    async def ask(
        self, visit: Visit, repository: Repository, question: Question
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Gives the body of the host's answer as long as the context lasts, without the credential in it.

        Raises Refusal, what the question's body raises, and ConnectionError when the answer breaks off.
        """
        from services.vault_proxy.outbound import NoAnswer
        from services.vault_proxy.outbound.streams import Sent

        if self._streams is None:
            self._streams = await asyncio.to_thread(self._make)
        streams: Streams = self._streams
        login, header = (None, None) if question.authorized else await self._credential(visit, repository)
        mask = None if header is None else _mask(*header)
        q, result = question, UNANSWERED
        try:
            sent = Sent(q.method, q.url, q.headers, q.body, q.length, None if header is None else _basic(*header))
            async with streams.exchange(sent) as answer:
                result = REFUSED if answer.status in (401, 403) else OK
                self._check(repository, question, answer, login)
                yield answer.parts if mask is None else _masked(answer.parts, mask)
        except UrlRefused as refused:
            raise Refusal(403, "HOST_DENIED", f"the host is not called: {refused}", str(repository)) from None
        except NoAnswer:
            raise unreachable(repository, "does not answer, or breaks off") from None
        finally:
            if mask is not None and mask.found and result == OK:
                result = "CREDENTIAL_REFLECTED"
            if login is not None:
                self._audit.used(visit.access.session_id, repository.origin.host, "", login, result)

    async def _credential(
        self, visit: Visit, repository: Repository
    ) -> tuple[Login | None, tuple[str, Secret[str]] | None]:
        """Returns the session's credential for a host, as user and value; None to ask without one."""
        try:
            login = await self._wallet.find_git(visit.access, repository.origin)
            if login is None:
                return None, None
            value = await self._apps.value(login) if login.app_id else login.value
        except ServiceError as problem:
            message = f"the credential for {repository.origin} cannot be read now ({problem.reason}): try again"
            raise Refusal(503, problem.reason, message, str(repository), told=False) from None
        return login, (login.user, value)

    def _check(self, repository: Repository, question: Question, answer: Received, login: Login | None) -> None:
        """Raises Refusal unless an answer is git's."""
        if answer.status in (401, 403):
            if login is not None and login.app_id:
                self._apps.forget(login)
            what = (
                "refuses the session's credential" if login else "wants a credential, and the session has none for it"
            )
            message = f"{repository.origin} {what}: {repository}"
            raise Refusal(
                403, REFUSED if login else "CREDENTIAL_NOT_FOUND", message, str(repository), told=login is None
            )
        if answer.status == 404:
            message = f"{repository.origin} has no {repository.path}, or does not show it to this session"
            raise Refusal(404, "SERVER_UNAVAILABLE", message, str(repository), told=False)
        if 300 <= answer.status < 400:
            raise unreachable(repository, "answers with a redirect, which is not followed: name the place where it is")
        if answer.status not in question.good:
            raise unreachable(repository, f"answers with status {answer.status}")
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        packed = answer.headers.get("content-encoding", "identity").strip().lower() != "identity"
        if packed or (question.takes and kind != question.takes):
            raise unreachable(repository, "answers with something that is not git's")


def _basic(user: str, value: Secret[str]) -> Secret[str]:
    return Secret(f"Basic {base64.b64encode(f'{user}:{value.reveal()}'.encode()).decode()}")


def _mask(user: str, value: Secret[str]) -> Mask:
    return Mask([value.reveal(), _basic(user, value).reveal().removeprefix("Basic ")])


async def _masked(parts: AsyncIterator[bytes], mask: Mask) -> AsyncIterator[bytes]:
    """Passes parts on, with the credential overwritten where a host says it back: a tripwire, not a boundary."""
    async for part in parts:
        yield mask.feed(part)
    yield mask.rest()
