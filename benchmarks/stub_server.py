"""The stub reviewer as a server of its own: HTTP/1.1 with kept connections, nothing but what an answer needs.

`python -m benchmarks.stub_server DIRECTORY PORT` serves the tables of a directory until it is stopped.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Final

from benchmarks.answers import Answers

_LENGTH: Final = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_ID: Final = re.compile(rb'"request_id":"([^"]+)"')
_RESULT: Final = re.compile(rb'"result_sha256":"([^"]+)"')


class StubConnection(asyncio.Protocol):
    """One kept connection; one request after the other."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._buffer = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self._buffer += data
        while True:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if not found or length is None or len(rest) < int(length[1]):
                return
            body, self._buffer = rest[: int(length[1])], rest[int(length[1]) :]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        request, result = _ID.search(body), _RESULT.search(body)
        assert request is not None
        assert result is not None
        receipt, delay = self._answers.find(request[1].decode())
        document = {
            "schema": "locseal.evidence-response.v1",
            "request_id": request[1].decode(),
            "result_sha256": result[1].decode(),
            "quality_receipt": receipt,
            "human_review_receipt": None,
            "independent_model_review": None,
        }
        text = json.dumps(document).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        if delay:
            asyncio.get_running_loop().call_later(delay, self._write, head + text)
        else:
            self._write(head + text)

    def _write(self, answer: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)


async def serve(directory: Path, port: int) -> None:
    """Serve on loopback until cancelled."""
    answers = Answers(directory)
    server = await asyncio.get_running_loop().create_server(
        lambda: StubConnection(answers), "127.0.0.1", port, backlog=2048
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
