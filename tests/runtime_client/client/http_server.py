"""A plan service that answers from a script, over real sockets."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class ScriptedServer:
    """Answers `METHOD path` with the answers given, the last one repeating; keeps what it was asked."""

    url: str = ""
    script: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    """Set at the end, so that handlers which hang can go home."""

    def on(self, route: str, *answers: Answer) -> None:
        self.script[route] = list(answers)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.asked.append(f"{handler.command} {handler.path}")
        self.authorization.append(handler.headers.get("Authorization"))
        self.bodies.append(handler.rfile.read(int(handler.headers.get("Content-Length", "0"))))
        answers = self.script[f"{handler.command} {path}"]
        (answers.pop(0) if len(answers) > 1 else answers[0])(handler)

    def hang(self) -> Answer:
        """Say nothing at all."""
        return lambda _handler: self.release.wait(30) and None


def reply(
    status: int, value: object, *, content_type: str = "application/json", cut: int = 0, **headers: str
) -> Answer:
    """A JSON answer; `cut` bytes at its end are announced but never sent."""
    text = json.dumps(value).encode() if not isinstance(value, str) else value.encode()

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(text)))
        handler.send_header("Connection", "close")
        for name, header in headers.items():
            handler.send_header(name.replace("_", "-"), header)
        handler.end_headers()
        handler.wfile.write(text[: len(text) - cut])
        handler.close_connection = True

    return send


def problem(status: int, title: str, detail: str, **headers: str) -> Answer:
    value = {"type": "urn:x", "title": title, "status": status, "detail": detail, "code": "some_code"}
    return reply(status, value, content_type="application/problem+json", **headers)


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        server.url = f"http://127.0.0.1:{listener.server_address[1]}"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.release.set()
            listener.shutdown()
            thread.join()
