"""What every hand must do about doors, as numbered checks against the port. See `conformance`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence

from services.kit.errors import Gone, Invalid, Refused
from services.sandbox.conformance import NotAsked, Stand, command, refused
from services.sandbox.hand import Doors, Outcome, Trust, Visit
from services.sandbox.runner.doors import MAX_VISITS

SECONDS = 30.0  # for anything to come
_BULK_BYTES = 8 << 20  # more than all buffers on the way together

_PEM = "-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n"
_JAVA_ENTRY = "580039"  # "X.509" ends, and the length of what comes


async def opened(stand: Stand, names: Sequence[str] = ("git", "egress")) -> tuple[str, Doors]:
    """Makes a sandbox with doors. Goes on only where there can be any."""
    sandbox_id = await stand.id()
    try:
        return sandbox_id, await stand.hand.open_doors(sandbox_id, names)
    except Refused as error:
        assert error.reason == "ISOLATION_UNAVAILABLE"
        raise NotAsked("the backend does not enforce: isolation") from None


@contextlib.asynccontextmanager
async def visited(stand: Stand, sandbox_id: str, door: str) -> AsyncIterator[Visit]:
    """Waits for a tool, and lets it go at the end."""
    async with asyncio.timeout(SECONDS):
        visit = await stand.hand.visit(sandbox_id, door)
    try:
        yield visit
    finally:
        visit.writer.close()


def client(port: int, body: str) -> str:
    """Returns a command that connects to a port as `it`, and does something."""
    return f"python3 - <<'END'\nimport socket\nit = socket.create_connection(('127.0.0.1', {port}), 20)\n{body}\nEND"


async def check_01_what_a_tool_says_at_a_door_comes_out(stand: Stand) -> None:
    """Bytes go both ways, each door has its own visits, and who has said all can still be answered."""
    sandbox_id, doors = await opened(stand)
    body = "it.sendall(b'hello'); it.shutdown(socket.SHUT_WR); print(it.makefile().read())"
    for door in ("egress", "git"):
        order = command(client(doors.ports[door], body))
        await stand.hand.start(sandbox_id, order)
        async with visited(stand, sandbox_id, door) as visit, asyncio.timeout(SECONDS):
            assert await visit.reader.read() == b"hello"
            visit.writer.write(f"you came to {door}".encode())
            visit.writer.write_eof()
            result = await stand.result(sandbox_id, order.execution_id)
        assert (result.text.strip(), result.outcome) == (f"you came to {door}", Outcome.OK)


async def check_02_an_answer_may_end_before_the_question(stand: Stand) -> None:
    """The service says all and ends its half; the tool reads it to its end and still speaks."""
    sandbox_id, doors = await opened(stand, ["git"])
    order = command(client(doors.ports["git"], "print(it.makefile().read(), flush=True); it.sendall(b'thanks')"))
    await stand.hand.start(sandbox_id, order)
    async with visited(stand, sandbox_id, "git") as visit, asyncio.timeout(SECONDS):
        visit.writer.write(b"all of it")
        visit.writer.write_eof()
        assert await visit.reader.read() == b"thanks"
    assert (await stand.result(sandbox_id, order.execution_id)).text.strip() == "all of it"


async def check_03_much_goes_through_whole(stand: Stand) -> None:
    """What one side does not take yet holds the other up, and nothing of it is lost."""
    sandbox_id, doors = await opened(stand, ["egress"])
    body = f"""
import hashlib, threading
seen = hashlib.sha256()
def read():
    while data := it.recv(65536):
        seen.update(data)
reader = threading.Thread(target=read); reader.start()
it.settimeout(30); it.sendall(bytes(range(256)) * {_BULK_BYTES // 256}); it.shutdown(socket.SHUT_WR)
reader.join(); print(seen.hexdigest())"""
    order = command(client(doors.ports["egress"], body))
    await stand.hand.start(sandbox_id, order)
    async with visited(stand, sandbox_id, "egress") as visit, asyncio.timeout(SECONDS):
        data = await visit.reader.readexactly(1)
        await stand.bash(sandbox_id, "true")  # the runner answers others while this one takes nothing
        data += await visit.reader.read(-1)
        assert data == bytes(range(256)) * (_BULK_BYTES // 256)
        visit.writer.write(data[::-1])
        visit.writer.write_eof()
        result = await stand.result(sandbox_id, order.execution_id)
    assert result.text.strip() == hashlib.sha256(data[::-1]).hexdigest()


async def check_04_many_come_at_once(stand: Stand) -> None:
    """Each tool's connection is given to one caller, and more of them than may be at once come one after the other."""
    sandbox_id, doors = await opened(stand, ["egress"])
    count = MAX_VISITS + 16
    body = f"""
import concurrent.futures
def ask(number):
    with socket.create_connection(('127.0.0.1', {doors.ports["egress"]}), 20) as it:
        it.sendall(b'%d\\n' % number); return it.makefile().readline() == 'to %d\\n' % number
it.close()
with concurrent.futures.ThreadPoolExecutor({count // 2}) as pool: print(sum(pool.map(ask, range({count}))))"""
    order = command(client(doors.ports["egress"], body))
    await stand.hand.start(sandbox_id, order)

    async def answer(visit: Visit) -> None:
        line = await visit.reader.readline()
        visit.writer.write(b"to " + line if line else b"")
        await visit.reader.read()  # until it goes
        visit.writer.close()

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(answer(await stand.hand.visit(sandbox_id, "egress")))

    serving = asyncio.create_task(serve())
    async with asyncio.timeout(SECONDS):
        result = await stand.result(sandbox_id, order.execution_id)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert result.text.strip() == str(count)


async def check_05_a_tool_speaks_to_nothing_but_who_waits(stand: Stand) -> None:
    """A request to the runner, said at a door, is bytes for the caller like any others."""
    sandbox_id, doors = await opened(stand, ["git"])
    request = b'{"op": "ping"}\n{"op": "list"}\n'
    order = command(client(doors.ports["git"], f"it.sendall({request!r}); print(it.makefile().read())"))
    await stand.hand.start(sandbox_id, order)
    async with visited(stand, sandbox_id, "git") as visit, asyncio.timeout(SECONDS):
        assert await visit.reader.readexactly(len(request)) == request
        visit.writer.write(b"no")
        visit.writer.write_eof()
        assert (await stand.result(sandbox_id, order.execution_id)).text.strip() == "no"


async def check_06_doors_outlive_the_service(stand: Stand) -> None:
    """A new service finds the doors as they were, and gets the tools that came meanwhile."""
    sandbox_id, doors = await opened(stand)
    waiting = asyncio.create_task(stand.hand.visit(sandbox_id, "git"))  # one that goes with its service
    order = command(client(doors.ports["egress"], "it.sendall(b'still here'); print(it.makefile().read())"))
    await stand.hand.start(sandbox_id, order)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    stand.hand = await stand.reopen()
    assert await stand.hand.open_doors(sandbox_id, []) == doors
    async with visited(stand, sandbox_id, "egress") as visit, asyncio.timeout(SECONDS):
        assert await visit.reader.readexactly(10) == b"still here"
        visit.writer.write(b"so am I")
        visit.writer.write_eof()
        assert (await stand.result(sandbox_id, order.execution_id)).text.strip() == "so am I"


async def check_07_an_outfit_is_there_for_the_next_tool(stand: Stand) -> None:
    """Variables and authorities are there when the call returns, and tools cannot be given them in any other way."""
    sandbox_id, doors = await opened(stand, ["egress"])
    await stand.hand.outfit(sandbox_id, {"GIVEN": "as 'it' is\n"}, Trust(_PEM, _PEM.replace("AAEC", "AwQF")))
    said = await stand.bash(
        sandbox_id, f'printf %s "$GIVEN"; grep -c BEGIN {doors.folder}/ca.pem; tail -n 3 {doors.folder}/ca.pem'
    )
    assert said.text.startswith("as 'it' is\n") and int(said.text.split()[3]) > 1 and "AwQF" in said.text
    said = await stand.bash(
        sandbox_id,
        f"cat {doors.folder}/own.pem; od -An -tx1 {doors.folder}/ca.jks | tr -d ' \\n' | (head -c 16; tail -c 60)",
    )
    assert "AwQF" in said.text and "AAEC" not in said.text
    assert "feedfeed00000002" in said.text and "00000003030405" in said.text
    said = await stand.bash(sandbox_id, "unset GIVEN; export OTHER=mine")
    await stand.hand.outfit(sandbox_id, {"OTHER": "given", "GIVEN": "again"})
    said = await stand.bash(sandbox_id, "echo $GIVEN $OTHER")
    assert said.text.strip() == "again mine"  # the shell's own state goes before


async def check_08_doors_are_closed_unless_opened(stand: Stand) -> None:
    """A sandbox listens on nothing by itself, and nobody visits a door that is not open."""
    sandbox_id, doors = await opened(stand, [])
    if not doors.folder:
        await refused(Refused, "ISOLATION_UNAVAILABLE", stand.hand.open_doors(sandbox_id, ["git"]))
        raise NotAsked("the backend does not enforce: isolation")
    assert not doors.ports
    listening = await stand.bash(sandbox_id, "grep -c ' 0A ' /proc/net/tcp /proc/net/tcp6 | cut -d: -f2 | sort -u")
    assert listening.text.strip() == "0"
    await refused(Invalid, "ARGUMENT_INVALID", stand.hand.visit(sandbox_id, "git"))
    assert set((await stand.hand.open_doors(sandbox_id, ["git"])).ports) == {"git"}
    await refused(Invalid, "ARGUMENT_INVALID", stand.hand.visit(sandbox_id, "egress"))
    await refused(Invalid, "ARGUMENT_INVALID", stand.hand.open_doors(sandbox_id, ["front"]))


async def check_09_a_door_has_another_port_where_a_tool_has_its_own(stand: Stand) -> None:
    """A tool that listens there first gets nothing by it but its own port."""
    sandbox_id = await stand.id()
    _, usual = await opened(stand)
    script = f"import socket,sys,time\nit=socket.create_server(('127.0.0.1',{usual.ports['git']}))\nopen('on','w')\n"
    await stand.hand.start(sandbox_id, command(f'python3 -c "{script}time.sleep(60)"'))
    await stand.until(sandbox_id, "[ -e on ]")
    doors = await stand.hand.open_doors(sandbox_id, ["git", "egress"])
    assert doors.ports["git"] != usual.ports["git"] and doors.ports["egress"] == usual.ports["egress"]


async def check_10_no_visit_of_a_sandbox_that_is_gone(stand: Stand) -> None:
    """Who waits for a tool is told when the sandbox goes."""
    sandbox_id, _ = await opened(stand)
    waiting = asyncio.create_task(stand.hand.visit(sandbox_id, "git"))
    await stand.bash(sandbox_id, "true")
    await stand.hand.release(sandbox_id)
    async with asyncio.timeout(SECONDS):
        await refused(Gone, "SANDBOX_GONE", waiting)
    await refused(Gone, "SANDBOX_GONE", stand.hand.open_doors(sandbox_id, ["git"]))


CHECKS = tuple(value for name, value in sorted(globals().items()) if name.startswith("check_"))
