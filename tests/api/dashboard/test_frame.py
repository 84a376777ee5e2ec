import doctest
import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.dashboard import formats, rendering
from api.dashboard.static_files import address_of, static_files
from scripts import vendor_scripts
from tests.api.dashboard.conftest import HTML

PAGES = ("/", "/plans", "/lineages", "/clusters", "/regenerations", "/jobs", "/nothing")


def test_docstrings_hold() -> None:
    for module in (formats, rendering):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("path", PAGES)
def test_pages_carry_strict_headers_and_nothing_inline(open_client: TestClient, path: str) -> None:
    answer = open_client.get(path, headers=HTML)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=|javascript:", answer.text)
    assert not re.search(r'(src|href)="(https?:)?//', answer.text)


@pytest.mark.parametrize("path", PAGES[:-1])
def test_empty_pages_say_what_to_do(open_client: TestClient, path: str) -> None:
    text = open_client.get(path, headers=HTML).text
    assert "shardwright " in text or path == "/regenerations"


def test_an_unknown_address_is_a_page_for_a_browser_and_a_problem_for_programs(open_client: TestClient) -> None:
    assert "text/html" in open_client.get("/nothing", headers=HTML).headers["content-type"]
    for path, headers in (("/nothing", {}), ("/v1/nothing", HTML)):
        answer = open_client.get(path, headers=headers)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


def test_parameters_that_are_none_are_a_page(open_client: TestClient) -> None:
    for path in ("/plans?sort=colour", "/plans?cursor=abc", "/jobs?state=lost", "/plans?sort=gap&cursor=W10"):
        answer = open_client.get(path, headers=HTML)
        assert answer.status_code == 422, path
        assert "text/html" in answer.headers["content-type"]


def test_hostile_names_are_shown_and_not_run(open_client: TestClient) -> None:
    answer = open_client.get("/plans?name=%3Cscript%3Ealert(1)%3C/script%3E", headers=HTML)
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text


def test_scripts_and_styles_are_kept_for_ever_under_their_content(open_client: TestClient) -> None:
    for path, file in static_files().items():
        answer = open_client.get(address_of(path), headers={"accept-encoding": "gzip"})
        assert answer.content == file.content
        assert "immutable" in answer.headers["cache-control"]
        assert hashlib.sha256(answer.content).hexdigest().startswith(file.digest)
        assert gzip.decompress(file.packed) == file.content
        again = open_client.get(address_of(path), headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304
        other = open_client.get(f"/static/0000/{path}")
        assert other.headers["cache-control"] == "no-cache"
    assert open_client.get("/static/0000/../../app.py").status_code == 404


def test_vendored_files_are_those_of_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert vendor_scripts.check() == 0
    for path in vendor_scripts.FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "htmx.min.js").write_bytes(b"evil()")
    (tmp_path / "more.js").write_bytes(b"")
    monkeypatch.setattr(vendor_scripts, "FOLDER", tmp_path)
    assert vendor_scripts.check() == 1
    assert [name in capsys.readouterr().err for name in ("htmx.min.js",)] == [True]
    listed = json.loads((tmp_path / "manifest.json").read_text())
    assert {entry["licence"] for entry in listed} == {"0BSD", "Apache-2.0"}
