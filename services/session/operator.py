"""How the two operators of the store, `migrate` and `janitor`, speak to NATS: seldom, in turn, and with rights that the
session service does not have.

NATS does not answer what an identity may not do: it complains, and the request times out. So a complaint is what is
raised, in NATS's own words, when there was one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from services.kit import configured, logs
from services.kit.settings import existing, one_of, setting, url

CONNECT_SECONDS = 30.0  # NATS may start at the same time
ANSWER_SECONDS = 10.0
RECONNECT_SECONDS = 0.05
NOT_FOUND = 10059  # JetStream's code for a stream that is not there
NO_MESSAGE = 10037  # for a subject that has nothing
NEWER = 10071  # and for a subject that has moved on


@dataclass(frozen=True)
class OperatorSettings:
    """What an operator of the store is told."""

    nats_url: str = setting("HANDMESH_NATS_URL", url, "nats://127.0.0.1:4222", "Where NATS is.")
    nats_credentials_file: Path | None = setting(
        "HANDMESH_NATS_CREDENTIALS_FILE", existing, None, "JSON {user, password}: this operator's login, not session's."
    )
    log_level: str = setting(
        "HANDMESH_LOG_LEVEL", one_of("debug", "info", "warning", "error"), "info", "From where on to log."
    )


S = TypeVar("S", bound=OperatorSettings)


class StoreError(Exception):
    """NATS refuses, or does not answer. The text is one line for the operator."""


class Operator:
    """A connection with an operator's rights."""

    def __init__(self) -> None:
        self.client = Client()
        self._complaint = ""

    async def open(self, told: OperatorSettings, name: str) -> None:
        """Connects, trying again while NATS is starting. Raises StoreError."""
        login: Mapping[str, str] = {}
        if told.nats_credentials_file:
            login = json.loads(told.nats_credentials_file.read_text())
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.client.connect(
                    told.nats_url,
                    user=login.get("user"),
                    password=login.get("password"),
                    name=f"handmesh {name}",
                    inbox_prefix=f"_INBOX_{login.get('user') or name}".encode(),
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type]  # slept, so a float is as good
                    connect_timeout=2,
                    error_cb=self._on_error,
                )
        except TimeoutError:
            said = self._complaint or "no answer"
            raise StoreError(f"HANDMESH_NATS_URL is {told.nats_url}, and NATS does not let us in: {said}") from None

    async def _on_error(self, problem: Exception) -> None:
        self._complaint = str(problem) or type(problem).__name__

    async def ask(self, subject: str, question: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Asks JetStream's API. An `error` in the answer is the caller's to look at. Raises StoreError without one."""
        return dict(json.loads((await self._request(f"$JS.API.{subject}", json.dumps(question or {}).encode())).data))

    async def value(self, stream: str, subject: str) -> bytes:
        """Returns what a stream has on a subject; nothing when it has nothing there. Raises StoreError."""
        question = json.dumps({"last_by_subj": subject}).encode()
        answer = await self._request(f"$JS.API.DIRECT.GET.{stream}", question)
        return b"" if (answer.headers or {}).get("Status") else answer.data

    async def entry(self, stream: str, subject: str) -> tuple[bytes, int]:
        """Returns what a stream's leader has on a subject, and its revision for `put`: nothing and 0 when there is
        none. Raises StoreError."""
        answer = await self.ask(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        if answer.get("error", {}).get("err_code") == NO_MESSAGE:
            return b"", 0
        if "error" in answer:
            raise StoreError(f"{subject}: {answer['error'].get('description')}")
        return base64.b64decode(answer["message"].get("data", "")), int(answer["message"]["seq"])

    async def put(self, subject: str, value: bytes, revision: int | None = None) -> int:
        """Stores a value, if there is nothing newer than `revision` on its subject; None stores it in any case. Returns
        its revision, or 0 when there is something newer. Raises StoreError."""
        headers = {} if revision is None else {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        answer = json.loads((await self._request(subject, value, headers)).data)
        if answer.get("error", {}).get("err_code") == NEWER:
            return 0
        if "error" in answer:
            raise StoreError(f"{subject}: {answer['error'].get('description')}")
        return int(answer["seq"])

    async def _request(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> Msg:
        self._complaint = ""
        try:
            return await self.client.request(subject, data, timeout=ANSWER_SECONDS, headers=dict(headers or {}) or None)
        except (OSError, nats.errors.Error) as problem:
            raise StoreError(f"{subject}: {self._complaint or type(problem).__name__}") from None


def main(
    name: str, kind: type[S], run: Callable[..., Coroutine[Any, Any, None]], flags: Mapping[str, str] | None = None
) -> None:
    """Runs an operator to its end. A service's own `main` would bring gRPC, which takes longer than a migration.

    `flags` are options of its own, without their dashes, with their meaning; `run` gets each as true or false.
    """
    parser = configured.arguments(name, f"services.session.{name}", kind)
    for flag, meaning in (flags or {}).items():
        parser.add_argument(f"--{flag}", action="store_true", help=meaning)
    chosen = vars(parser.parse_args())
    if chosen.pop("check"):
        configured.check(name, kind, ())
        return
    values = configured.read(name, kind)
    logs.set_up(values.log_level)
    configured.warn_of_unread(kind)
    try:
        asyncio.run(run(values, **chosen))
    except StoreError as problem:
        sys.exit(f"{name}: {problem}")


@asynccontextmanager
async def connected(told: OperatorSettings, name: str) -> AsyncIterator[Operator]:
    """Opens a connection, and closes it at the end."""
    operator = Operator()
    try:
        await operator.open(told, name)
        yield operator
    finally:
        await operator.client.close()
