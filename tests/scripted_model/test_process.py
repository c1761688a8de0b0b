"""The scripted model as a process: how it starts, says where it is, is checked and is stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from anthropic import AsyncAnthropic, AuthenticationError

Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts processes, and ends at the end those that are left."""
    processes: list[asyncio.subprocess.Process] = []

    async def run(*arguments: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "handmesh.scripted_model",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = json.loads(await process.stdout.readline())
    assert line.keys() == {"base_url", "pid"} and line["pid"] == process.pid
    return str(line["base_url"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_where_it_is_serves_and_stops(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    """One line of JSON tells the URL; a signal stops it with status 0 and nothing on standard error."""
    script = tmp_path / "script.yaml"
    script.write_text("turns: [{say: [{text: hello}]}]")
    process = await start("--script", str(script), "--listen", "127.0.0.1:0", "--api-key", "right")
    base_url = await ready(process)
    ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    async with AsyncAnthropic(base_url=base_url, api_key="right", max_retries=0) as client:
        assert (await client.messages.create(**ask)).content[0].text == "hello"  # type: ignore[call-overload]
        with pytest.raises(AuthenticationError):
            await client.with_options(api_key="wrong").messages.create(**ask)  # type: ignore[call-overload]
    process.send_signal(number)
    assert (await process.communicate(), process.returncode) == ((b"", b""), 0)


async def test_the_shipped_script_lists_files(start: Start) -> None:
    """Without --script a request to list the files calls the offered bash tool, whatever its prefix, and sums up."""
    base_url = await ready(await start())
    tools = [{"name": "box__bash", "input_schema": {"type": "object"}}]
    messages: list[object] = [{"role": "user", "content": "List the files, please"}]
    async with AsyncAnthropic(base_url=base_url, api_key="k", max_retries=0) as client:
        ask = {"model": "claude-fable-5-2", "max_tokens": 999, "messages": messages, "tools": tools}
        first = await client.messages.create(**ask)  # type: ignore[call-overload]
        call = first.content[1]
        assert (call.name, call.input) == ("box__bash", {"command": "ls -la"})
        for is_error, start_of_text in (
            (False, "These are the files:\n\na.txt"),
            (True, "I could not list the files."),
        ):
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "a.txt", "is_error": is_error}
            ask["messages"] = [*messages, first.to_param(), {"role": "user", "content": [result]}]
            second = await client.messages.create(**ask)  # type: ignore[call-overload]
            assert second.content[0].text.startswith(start_of_text)
        ask["messages"] = [{"role": "user", "content": "Write me a poem"}]
        other = await client.messages.create(**ask)  # type: ignore[call-overload]
        assert "scripted model, not Claude" in other.content[0].text


async def test_a_wrong_script_ends_the_start(start: Start, tmp_path: Path) -> None:
    """A script with mistakes gives status 2 and each mistake on standard error, with or without --check."""
    script = tmp_path / "wrong.yaml"
    script.write_text("turns: [{say: [{txt: hello}]}]")
    for more in ((), ("--check",)):
        process = await start("--script", str(script), *more)
        out, err = await process.communicate()
        assert (process.returncode, out) == (2, b"")
        assert err.decode() == (
            f"{script}: turns[0].say[0]: expected an object with one key, 'text', 'thinking', 'tool_use' or 'block'\n"
        )


async def test_a_right_script_is_checked_without_serving(start: Start, tmp_path: Path) -> None:
    """--check reads the script, says nothing and exits with 0."""
    script = tmp_path / "right.yaml"
    script.write_text("turns: [{say: [{text: hello}]}]")
    process = await start("--check", "--script", str(script))
    assert (await process.communicate(), process.returncode) == ((b"", b""), 0)


async def test_an_address_in_use_ends_the_start(start: Start) -> None:
    """An address that is taken gives status 2 and a sentence that names it."""
    base_url = await ready(await start())
    address = base_url.removeprefix("http://")
    process = await start("--listen", address)
    out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert err.decode().startswith(f"cannot listen on {address}: ")


@pytest.mark.parametrize("address", ["8080", "localhost:x", ":1", "127.0.0.1:70000"])
async def test_a_wrong_address_is_told(start: Start, address: str) -> None:
    """--listen wants HOST:PORT."""
    process = await start("--listen", address)
    _, err = await process.communicate()
    assert process.returncode == 2
    assert f"expected HOST:PORT, such as 127.0.0.1:0, not '{address}'" in err.decode()


async def test_it_stops_in_the_middle_of_a_reply(start: Start, tmp_path: Path) -> None:
    """A reply that is under way, even a silent one, does not hold up SIGTERM."""
    script = tmp_path / "script.yaml"
    script.write_text("turns: [{say: [{text: hello}], silence_after_events: 1}]")
    process = await start("--script", str(script))
    async with AsyncAnthropic(base_url=await ready(process), api_key="k", max_retries=0) as client:
        ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        events = aiter(await client.messages.create(**ask))  # type: ignore[call-overload]
        assert (await anext(events)).type == "message_start"
        process.terminate()
        assert (await process.communicate(), process.returncode) == ((b"", b""), 0)


async def test_starting_imports_neither_the_sdk_nor_a_web_framework() -> None:
    """The server stays light: the standard library, PyYAML and its own modules are all it loads."""
    code = (
        "import json, sys; before = set(sys.modules); import handmesh.scripted_model.__main__\n"
        "names = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps(sorted(names - sys.stdlib_module_names)))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert {name for name in json.loads(out) if "cython" not in name} <= {"handmesh", "yaml", "_yaml"}
