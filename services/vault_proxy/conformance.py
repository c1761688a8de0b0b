"""What every credential store must do: numbered checks of the port's promises, without knowledge of any store.

    for check in CHECKS:
        await check(store, folder)    # a folder of the check's own: lower-case words joined by `/`

A check raises AssertionError. Stores that can be shut are also given to `check_shut_and_open`.
"""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Awaitable, Callable

from services.kit.errors import Conflict, Unavailable
from services.vault_proxy.ports import CredentialStore, Document, Pass
from services.vault_proxy.secret import Secret

Check = Callable[[CredentialStore, str], Awaitable[None]]

SHUT_SECONDS = 2.0
FIELDS = {"kind": "static_bearer", "origin": "https://a.example", "value": 'c4nary-ä-"\\/+=', "empty": ""}


async def check_01_what_is_written_is_read(store: CredentialStore, folder: str) -> None:
    """A document comes back as it was, with version 1."""
    assert await store.write(f"{folder}/one", FIELDS, 0) == 1
    document = await store.read(f"{folder}/one")
    assert document == Document(Secret(FIELDS), 1)


async def check_02_nothing_is_read_where_nothing_is(store: CredentialStore, folder: str) -> None:
    """A missing document is None, and a missing folder is empty."""
    assert await store.read(f"{folder}/none") is None
    assert await store.list(f"{folder}/none") == []


async def check_03_versions_count_up(store: CredentialStore, folder: str) -> None:
    """Each write makes the next version, and the newest is read."""
    for version in range(3):
        assert await store.write(f"{folder}/two", {"value": str(version)}, version) == version + 1
    assert await store.read(f"{folder}/two") == Document(Secret({"value": "2"}), 3)


async def check_04_a_stale_write_changes_nothing(store: CredentialStore, folder: str) -> None:
    """A write that expects another version is a conflict that names the true one."""
    await store.write(f"{folder}/three", {"value": "a"}, 0)
    await store.write(f"{folder}/three", {"value": "b"}, 1)
    for expected in (0, 1, 3):
        conflict = await _conflict(store, f"{folder}/three", expected)
        assert conflict.metadata == {"version": "2"}, conflict.metadata
    missing = await _conflict(store, f"{folder}/four", 1)
    assert missing.metadata == {"version": "0"}, missing.metadata
    assert await store.read(f"{folder}/three") == Document(Secret({"value": "b"}), 2)
    assert await store.read(f"{folder}/four") is None


async def check_05_of_two_writers_one_wins(store: CredentialStore, folder: str) -> None:
    """Ten writers of one version: one succeeds, and its document is there."""

    async def write(number: int) -> int | None:
        try:
            await store.write(f"{folder}/race", {"value": str(number)}, 0)
        except Conflict:
            return None
        return number

    won = [each for each in await asyncio.gather(*(write(number) for number in range(10))) if each is not None]
    assert len(won) == 1, won
    assert await store.read(f"{folder}/race") == Document(Secret({"value": str(won[0])}), 1)


async def check_06_folders_are_listed(store: CredentialStore, folder: str) -> None:
    """Names are sorted; what is deeper shows as its folder, once, and beside a document of the same name."""
    for path in ("b", "a", "c/x", "c/y", "a/z"):
        await store.write(f"{folder}/list/{path}", {"value": path}, 0)
    assert await store.list(f"{folder}/list") == ["a", "a/", "b", "c/"]
    assert await store.list(f"{folder}/list/c") == ["x", "y"]
    assert await store.list(f"{folder}/lis") == []


async def check_07_what_is_purged_is_gone(store: CredentialStore, folder: str) -> None:
    """After a purge nothing is read or listed, the next write is the first, and purging again is no error."""
    await store.write(f"{folder}/gone/it", {"value": "a"}, 0)
    await store.write(f"{folder}/gone/it", {"value": "b"}, 1)
    await store.purge(f"{folder}/gone/it")
    await store.purge(f"{folder}/gone/it")
    assert await store.read(f"{folder}/gone/it") is None
    assert await store.list(f"{folder}/gone") == []
    assert await store.write(f"{folder}/gone/it", {"value": "c"}, 0) == 1


async def check_08_documents_do_not_show_themselves(store: CredentialStore, folder: str) -> None:
    """A document's repr hides its fields, and neither pickle, copy nor JSON takes them."""
    await store.write(f"{folder}/shown", FIELDS, 0)
    document = await store.read(f"{folder}/shown")
    assert document is not None
    assert FIELDS["value"] not in repr(document) + str(document.fields) + f"{document.fields}"
    for refused in (pickle.dumps, copy.deepcopy, json.dumps):
        try:
            refused(document.fields)
        except TypeError:
            continue
        raise AssertionError(f"{refused.__name__} took a secret")


async def check_09_calls_may_be_made_at_once(store: CredentialStore, folder: str) -> None:
    """Fifty documents written and read at once are all right."""

    async def one(number: int) -> Document | None:
        await store.write(f"{folder}/many/n{number}", {"value": str(number)}, 0)
        return await store.read(f"{folder}/many/n{number}")

    found = await asyncio.gather(*(one(number) for number in range(50)))
    assert found == [Document(Secret({"value": str(number)}), 1) for number in range(50)]


async def check_10_a_change_keeps_the_rest(store: CredentialStore, folder: str) -> None:
    """Named fields are replaced or go, others stay; a stale change, or one of nothing, is a conflict."""
    path = f"{folder}/patched"
    await store.write(path, {"value": "a", "kept": "b", "goes": "c"}, 0)
    assert await store.patch(path, {"value": "new", "goes": None, "more": "d"}, 1) == 2
    changed = Document(Secret({"value": "new", "kept": "b", "more": "d"}), 2)
    assert await store.read(path) == changed
    for expected in (0, 1, 3):
        try:
            await store.patch(path, {"value": "stale"}, expected)
        except Conflict as conflict:
            assert conflict.metadata == {"version": "2"}, conflict.metadata
            continue
        raise AssertionError(f"a change that expected version {expected} was taken")
    try:
        await store.patch(f"{folder}/nothing", {"value": "x"}, 0)
    except Conflict as conflict:
        assert conflict.metadata == {"version": "0"}, conflict.metadata
    else:
        raise AssertionError("nothing was changed")
    assert await store.read(path) == changed
    assert await store.read(f"{folder}/nothing") is None


async def check_11_versions_are_told(store: CredentialStore, folder: str) -> None:
    """A document's version is told without the document, 0 where there is none, and again after a purge."""
    path = f"{folder}/counted"
    assert await store.version(path) == 0
    await store.write(path, {"value": "a"}, 0)
    await store.write(path, {"value": "b"}, 1)
    assert await store.version(path) == 2
    await store.purge(path)
    assert await store.version(path) == 0


async def check_secrets(store: CredentialStore, tenant: str, vault_id: str, holder: Pass) -> None:
    """A secret that was written or changed is read with the pass of a session that has its vault; nothing is None."""
    folder = f"tenants/{tenant}/secrets/{vault_id}"
    assert await store.read_secret(f"{folder}/one", holder) is None
    await store.write(f"{folder}/one", FIELDS, 0)
    assert await store.read_secret(f"{folder}/one", holder) == Document(Secret(FIELDS), 1)
    assert await store.patch(f"{folder}/one", {"value": "newer", "origin": None}, 1) == 2
    changed = {"kind": FIELDS["kind"], "value": "newer", "empty": ""}
    assert await store.read_secret(f"{folder}/one", holder) == Document(Secret(changed), 2)
    store.forget(holder.session_id, 0)
    assert await store.read_secret(f"{folder}/one", holder) == Document(Secret(changed), 2)
    await store.purge(f"{folder}/one")
    assert await store.read_secret(f"{folder}/one", holder) is None


async def check_shut_and_open(
    store: CredentialStore, folder: str, shut: Callable[[], Awaitable[None]], reopen: Callable[[], Awaitable[None]]
) -> None:
    """A store that is shut says so within 2 seconds, whatever is asked, and works again once it is open."""
    await store.write(f"{folder}/kept", FIELDS, 0)
    await shut()
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: store.read(f"{folder}/kept"),
        lambda: store.list(folder),
        lambda: store.write(f"{folder}/kept", FIELDS, 1),
        lambda: store.patch(f"{folder}/kept", FIELDS, 1),
        lambda: store.version(f"{folder}/kept"),
        lambda: store.purge(f"{folder}/kept"),
    ]
    for ask in asked:
        async with asyncio.timeout(SHUT_SECONDS):
            try:
                await ask()
            except Unavailable as problem:
                assert problem.reason == "VAULT_UNAVAILABLE", problem.reason
                assert FIELDS["value"] not in str(problem)
                continue
        raise AssertionError("a shut store answered")
    await reopen()
    assert await store.read(f"{folder}/kept") == Document(Secret(FIELDS), 1)


async def _conflict(store: CredentialStore, path: str, expected: int) -> Conflict:
    try:
        await store.write(path, {"value": "stale"}, expected)
    except Conflict as conflict:
        assert conflict.reason == "VERSION_CONFLICT", conflict.reason
        return conflict
    raise AssertionError(f"a write that expected version {expected} was taken")


CHECKS: tuple[Check, ...] = (
    check_01_what_is_written_is_read,
    check_02_nothing_is_read_where_nothing_is,
    check_03_versions_count_up,
    check_04_a_stale_write_changes_nothing,
    check_05_of_two_writers_one_wins,
    check_06_folders_are_listed,
    check_07_what_is_purged_is_gone,
    check_08_documents_do_not_show_themselves,
    check_09_calls_may_be_made_at_once,
    check_10_a_change_keeps_the_rest,
    check_11_versions_are_told,
)
