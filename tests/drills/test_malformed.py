"""Malformed requests, made from the descriptors: each method refuses them with a reason of its own, and goes on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from handmesh.session.v1 import memory_pb2, session_pb2
from tests.drills.process import client_of, insist, memory_of, processes
from tests.drills.size import size
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(1_800)]

INPUTS = size(25, 1_000)  # for each method
SECONDS = 0.5  # a stream that was not refused is left after so long
BUGS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)

TEXTS = ["", "*", ">", "a.b", " ", "\t", "\r\n", "\0", "é", "x" * 5_000, "$JS.API.>", "_INBOX.x", "\u202e", "🦆", "NaN"]
NUMBERS = [0, 1, -1, 2, 16, 100_001, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
JSON = ["[]", "{}", "[" * 10_000, '{"a":NaN}', "[1e999]", '[{"type":"text","text":"\\ud800"}]', '[{"type":"tool_use"}]']


class Generator:
    """Makes requests of a message's type: absent, default, extreme, wrong and random fields. The same for one seed."""

    def __init__(self, seed: str, session_id: str) -> None:
        self._random = random.Random(seed)
        self._session_id = session_id

    def fill(self, message: Message, depth: int = 0) -> Message:
        """Sets some of a message's fields."""
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < (0.25 if depth else 0.15):
                continue
            if depth > 4 and field.message_type is not None:
                continue
            if field.is_repeated:
                self._fill_many(message, field, depth)
            elif field.message_type is not None:
                self.fill(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self._value(field))
        return message

    def _fill_many(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        many: Any = getattr(message, field.name)
        for _ in range(self._random.choice((0, 1, 1, 2, 40))):
            if field.message_type is None:
                many.append(self._value(field))
            elif field.message_type.GetOptions().map_entry:
                entry = field.message_type.fields_by_name
                if entry["value"].message_type is None:
                    many[self._value(entry["key"])] = self._value(entry["value"])
                else:
                    self.fill(many[self._value(entry["key"])], depth + 1)
            else:
                self.fill(many.add(), depth + 1)

    def _value(self, field: FieldDescriptor) -> Any:
        choose = self._random.choice
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                return choose([b"", b"\xff\xfe", bytes(70_000)])
            case FieldDescriptor.CPPTYPE_STRING if field.name == "session_id" and self._random.random() < 0.7:
                return self._session_id
            case FieldDescriptor.CPPTYPE_STRING:
                return choose(JSON if field.name.endswith("_json") else [*TEXTS, "e" + str(self._random.random())[2:]])
            case FieldDescriptor.CPPTYPE_BOOL:
                return choose([True, False])
            case FieldDescriptor.CPPTYPE_ENUM:
                return choose([0, 1, 2, 99, -1])
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return choose([0.0, -1.0, float("nan"), float("inf"), 1e308])
            case FieldDescriptor.CPPTYPE_INT32:
                return choose([n for n in NUMBERS if -(2**31) <= n < 2**31])
            case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
                return choose([n for n in NUMBERS if 0 <= n < 2**31])
            case _:
                return choose(NUMBERS)

    def bytes_of(self, method: MethodDescriptor) -> bytes:
        """Makes the bytes of a request; now and then with bits flipped, unknown fields, a cut, or plain garbage."""
        data = self.fill(GetMessageClass(method.input_type)()).SerializePartialToString()
        match self._random.randrange(8):
            case 0 if data:
                spoilt = bytearray(data)
                for _ in range(3):
                    spoilt[self._random.randrange(len(spoilt))] ^= 1 << self._random.randrange(8)
                return bytes(spoilt)
            case 1:
                return data + b"\xfa\xff\x07\x05hello" + b"\xf8\xff\x07\x01"
            case 2:
                return data[: self._random.randrange(len(data) + 1)]
            case 3:
                return self._random.randbytes(200)
        return data


SERVICES = (
    session_pb2.DESCRIPTOR.services_by_name["SessionService"],
    memory_pb2.DESCRIPTOR.services_by_name["MemoryService"],
)
LAST = ("EndSession", "ArchiveSession", "DeleteSession")  # the others need a session that is there
ALL = sorted((method for service in SERVICES for method in service.methods), key=lambda method: method.name in LAST)


async def _say(channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes) -> grpc.StatusCode | None:
    """Sends the bytes and returns the status; None when it was served, or still is after a while."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    sort = ("stream" if method.client_streaming else "unary") + "_" + ("stream" if method.server_streaming else "unary")
    call = getattr(channel, sort)(path)([data, data] if method.client_streaming else data, timeout=SECONDS)
    try:
        if method.server_streaming:
            await call.read()
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def test_malformed_requests_are_refused(own_nats_server: NatsServer, identities: Path) -> None:
    """No input makes a method fail by accident, ends the process, or leaves memory behind."""
    async with processes(own_nats_server, identities) as process, client_of(process.served) as stub:
        await process.start()
        assert process.running is not None
        create = session_pb2.CreateSessionRequest()
        session = (await insist(stub, "CreateSession", create)).session.session_id
        harness = process.served.as_service("harness")
        bugs: list[str] = []
        try:
            async with process.served.as_client() as client:
                await _storm(client, harness, ALL, session, 10, bugs)
                before = memory_of(process.running.pid)
                await _storm(client, harness, ALL, session, INPUTS, bugs)
        finally:
            await harness.close()
        assert bugs == []
        assert process.running.returncode is None
        assert memory_of(process.running.pid) - before < 50_000
        assert (await insist(stub, "CreateSession", create)).session.session_id != session


async def _storm(
    client: grpc.aio.Channel,
    harness: grpc.aio.Channel,
    methods: list[MethodDescriptor],
    session: str,
    inputs: int,
    bugs: list[str],
) -> None:
    for method in methods:
        makes = Generator(method.full_name, session)
        for number in range(inputs):
            data = makes.bytes_of(method)
            channel = harness if number % 4 == 0 else client
            code = await _say(channel, method, data)
            if code in BUGS and method.client_streaming:
                # grpc's client says INTERNAL by itself when it is answered while it still sends. A bug shows again.
                code = await _say(channel, method, data)
            if code in BUGS:
                bugs.append(f"{method.name} {code}: {data[:60]!r}")
