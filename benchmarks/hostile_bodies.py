"""Bodies that no client should send, for every operation that takes one: each is answered with a clear 4xx.

    python -m benchmarks.hostile_bodies --count 10000

Runs the application in this process on SQLite, with a planner that refuses everything at once. Watches what the
process opens and where it connects: nothing that a body names may be among it. Prints one line for each kind of
body and what it was answered with; exits with 1 when an answer was wrong.
"""

import argparse
import copy
import gzip
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi.testclient import TestClient

from api.http import create_app
from api.http.examples import CLUSTER, DOCUMENTS, MODEL, PROFILE, REFERENCES, REQUEST
from api.http.problems import MEDIA_TYPE
from api.logs import configure_logs
from api.settings import Settings

MARKER = "shardwright-must-not-open-this"
PLANNER = (
    "import sys, json; sys.stdin.buffer.read(); "
    "print(json.dumps({'event': 'error', 'code': 'unsupported_field', 'message': 'not here'})); sys.exit(2)"
)
MAX_ANSWER_BYTES = 1_000_000
_NAME = quote(CLUSTER["name"])
OPERATIONS: dict[tuple[str, str], Any] = {
    ("POST", "/v1/plans?wait=0"): REQUEST,
    ("POST", "/v1/models"): MODEL,
    ("POST", "/v1/clusters"): CLUSTER,
    ("POST", "/v1/profiles"): PROFILE,
    ("POST", "/v1/lineages"): {"name": "job", "plan": REFERENCES["model"], "why": "x"},
    ("PUT", "/v1/lineages/job/active"): {"revision": 1, "why": "x"},
    ("POST", f"/v1/clusters/{_NAME}/revisions"): {
        "changes": [{"change": "nodes_lost", "num_nodes": 1}],
        "policy": {"activate_within_percent": 1.0},
        "dry_run": True,
    },
    ("POST", "/v1/keys/0123456789abcdef/rotate"): {"keep_old_s": 1},
}
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**53, 2**63, 10**400, -(10**400), 1e308, 0.1),
    *("", "x" * 10_000, "\x00", "\u202e", "NaN", "-0", "%00", "{{7*7}}", "\U0001f600" * 300),
    *([], {}, [[]], {"": {}}, ["a"] * 1000, {str(number): number for number in range(1000)}),
    *(f"/tmp/{MARKER}", f"file:///tmp/{MARKER}", f"http://{MARKER}.invalid/x", f"../../{MARKER}"),
    *("${jndi:ldap://" + MARKER + ".invalid/}", "'; DROP TABLE plans; --"),
    *("sha256:" + "0" * 64, "sha256:" + "g" * 64),
)
_TEXTS = (
    *(b"", b" ", b"\xef\xbb\xbf{}", b"null", b"[]", b"0", b'"x"', b"{}", b"True", b"'a'", b"// x\n{}"),
    *(b"NaN", b"[NaN]", b'{"a":Infinity}', b'{"a":01}', b'{"a":+1}', b'{"a":1e400}'),
    *(b"{", b'{"a"', b"[1,]", b'{"a":1,"a":2}', b"\x00", b'{"a":"\x01"}'),
    *(
        b'"\\ud800"',
        b'{"name":"\\ud800"}',
        b'{"\\udfff":1}',
        b'{"name":"\xed\xa0\x80"}',
        b"\xc0\xaf",
        b"\xff\xfe\x00",
    ),
)


@dataclass
class Tally:
    """What came of the bodies."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    num: int = 0


Body = tuple[bytes, dict[str, str]]
_JSON = {"content-type": "application/json"}


def _mutated(rng: random.Random, valid: Any) -> Body:
    """A valid body with some of its values replaced, removed or repeated."""
    value = copy.deepcopy(valid)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        parent, key = _somewhere(rng, value)
        if parent is None:
            return json.dumps(rng.choice(_VALUES)).encode(), _JSON
        what = rng.random()
        if what < 0.7:
            parent[key] = copy.deepcopy(rng.choice(_VALUES))
        elif what < 0.85:
            del parent[key]
        elif isinstance(parent, dict):
            parent[str(rng.choice(_VALUES))[:300]] = parent[key]
        else:
            parent.extend([parent[key]] * 50)
    return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"), _JSON


def _somewhere(rng: random.Random, value: Any) -> tuple[Any, Any]:
    parent, key = None, None
    while isinstance(value, dict | list) and value:
        parent, key = value, rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = value[key]
        if rng.random() < 0.25:
            break
    return parent, key


def _deep(rng: random.Random, valid: Any) -> Body:
    depth = rng.choice((50, 150, 300, 5_000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"model":{"kinds":', b"}}")))
    return opening * depth + b"1" + closing * (depth if rng.random() < 0.5 else 0), _JSON


def _text(rng: random.Random, valid: Any) -> Body:
    return rng.choice(_TEXTS), _JSON


def _cut(rng: random.Random, valid: Any) -> Body:
    text = json.dumps(valid).encode()
    return text[: rng.randrange(len(text))], _JSON


def _flipped(rng: random.Random, valid: Any) -> Body:
    text = bytearray(json.dumps(valid).encode())
    for _ in range(rng.choice((1, 3, 10))):
        text[rng.randrange(len(text))] = rng.randrange(256)
    return bytes(text), _JSON


def _digits(rng: random.Random, valid: Any) -> Body:
    digits = b"9" * rng.choice((20, 400, 5_000, 200_000))
    return rng.choice(
        (b'{"schema_version":%s}', b"[%s]", b'{"micro_batch":-%s}', b"[0.%s]", b"[1e%s]")
    ) % digits, _JSON


def _many(rng: random.Random, valid: Any) -> Body:
    number = rng.choice((1_000, 100_000, 1_000_001))
    return b'{"modules":[' + b"0," * number + b"0]}", _JSON


def _compressed(rng: random.Random, valid: Any) -> Body:
    bomb = gzip.compress(b" " * 5_000_000 if rng.random() < 0.5 else json.dumps(valid).encode(), 9)
    encoding = rng.choice(("gzip", "deflate", "br", "zstd", "gzip, gzip", "x" * 300, ""))
    return bomb, {**_JSON, "content-encoding": encoding}


def _typed(rng: random.Random, valid: Any) -> Body:
    kinds = (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "json",
        "a/b/c;;",
    )
    return json.dumps(valid).encode(), {"content-type": rng.choice(kinds)}


KINDS: dict[str, tuple[int, Callable[[random.Random, Any], Body]]] = {
    "mutated": (50, _mutated),
    "cut": (10, _cut),
    "flipped": (10, _flipped),
    "text": (10, _text),
    "deep": (6, _deep),
    "digits": (6, _digits),
    "compressed": (4, _compressed),
    "typed": (3, _typed),
    "many": (1, _many),
}
"""How often each kind comes, and how it is made."""


@contextmanager
def _watched(opened: list[str]) -> Iterator[None]:
    """Collects what this process opens, and where it connects or which names it resolves, while it lasts."""
    is_on = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_on and event in ("open", "socket.connect", "socket.getaddrinfo", "os.listdir", "subprocess.Popen"):
            text = str(arguments)
            if MARKER in text:
                opened.append(f"{event} {text[:300]}")

    sys.addaudithook(hook)
    try:
        yield
    finally:
        is_on = False


def run(count: int, seed: int = 0) -> Tally:
    """Send so many bodies."""
    rng, tally, opened = random.Random(seed), Tally(), []
    with tempfile.TemporaryDirectory() as folder, _watched(opened):
        settings = Settings(
            database_url=f"sqlite:///{Path(folder) / 'hostile.db'}",
            planner_command=(sys.executable, "-I", "-S", "-c", PLANNER),
            max_jobs_per_key=20,
            max_body_bytes=4 * 2**20,
        )
        with TestClient(create_app(settings), base_url="http://localhost", raise_server_exceptions=False) as client:
            for kind, document in DOCUMENTS.items():
                client.post(f"/v1/{kind}s", json=document)
            for _ in range(count):
                _send(client, rng, tally)
            if client.get("/readyz").status_code != 200:
                tally.wrong.append("the server is not ready any more")
    tally.wrong += [f"opened what a body names: {what}" for what in opened]
    return tally


def _send(client: TestClient, rng: random.Random, tally: Tally) -> None:
    (method, path), valid = rng.choice(list(OPERATIONS.items()))
    (kind,) = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])
    body, headers = KINDS[kind][1](rng, valid)
    headers = {name: value for name, value in headers.items() if value}
    if method == "PUT" and rng.random() < 0.8:
        headers["if-match"] = rng.choice(('"1"', '"99999999999"', "*", "x", '""'))
    answer = client.request(method, path, content=body, headers=headers)
    tally.num += 1
    tally.answers[kind, answer.status_code] += 1
    problem = _wrong(answer)
    if problem:
        tally.wrong.append(f"{method} {path}, {kind}: {problem}: {body[:300]!r} -> {answer.text[:300]}")


def _wrong(answer: Any) -> str:
    if answer.status_code >= 500:
        return f"status {answer.status_code}"
    if answer.status_code >= 400 and answer.headers.get("content-type") != MEDIA_TYPE:
        return f"no problem document but {answer.headers.get('content-type')}"
    if answer.status_code >= 400 and not answer.json()["detail"]:
        return "says nothing"
    if len(answer.content) > MAX_ANSWER_BYTES:
        return f"answers with {len(answer.content)} bytes"
    return ""


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    configure_logs(Settings(log_level="ERROR"))
    tally = run(arguments.count, arguments.seed)
    for kind in KINDS:
        told = {status: number for (name, status), number in sorted(tally.answers.items()) if name == kind}
        print(f"{kind:12}" + "  ".join(f"{status}: {number}" for status, number in told.items()))
    print(f"{tally.num} bodies, {len(tally.wrong)} wrong answers")
    for line in tally.wrong[:20]:
        print(line)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
