import pytest

from api.service.callers import Scope
from api.service.keys import KeyService, NewKey
from profiles_db import migrations
from profiles_db.engine import Database
from tests.api.http.server import wait_until


def test_launchers_run_before_batches(gated) -> None:
    one = gated()
    one.post("first", "batch")
    wait_until(lambda: one.started() == ["first"])
    one.post("second", "batch")
    link = one.post("third")
    assert one.server.http.get(link).json()["priority"] == "launcher"
    one.open()
    wait_until(lambda: len(one.started()) == 3)
    assert one.started() == ["first", "third", "second"]


@pytest.mark.parametrize("limit", ["1", "8"])
def test_a_launcher_that_asks_for_a_batch_job_makes_it_urgent(gated, limit: str) -> None:
    one = gated(SHARDWRIGHT_MAX_SOLVES_PER_KEY=limit)
    one.post("first")
    wait_until(lambda: one.started() == ["first"])
    for name in ("second", "third"):
        one.post(name, "batch")
    link = one.post("third")
    assert one.server.http.get(link).json()["priority"] == "launcher"
    assert one.post("third", "batch") == link
    assert one.server.http.get(link).json()["priority"] == "launcher"
    one.open()
    wait_until(lambda: len(one.started()) == 3)
    assert one.started() == ["first", "third", "second"]


def test_a_key_with_many_jobs_does_not_keep_others_waiting(gated, database_url: str) -> None:
    database = Database(database_url)
    migrations.upgrade(database)
    keys = KeyService(database)
    many, few = (keys.create("default", NewKey(name=name, scopes=(Scope.PLAN,))).token for name in "ab")
    database.close()
    one = gated(SHARDWRIGHT_MAX_SOLVES_PER_KEY="2")
    one.post("many-1", token=many)
    wait_until(lambda: one.started() == ["many-1"])
    for number in (2, 3, 4):
        one.post(f"many-{number}", token=many)
    for number in (1, 2):
        one.post(f"few-{number}", token=few)
    one.open()
    wait_until(lambda: len(one.started()) == 6)
    order = one.started()
    assert order[:2] == ["many-1", "few-1"]
    assert set(order[2:4]) == {"many-2", "few-2"}
    assert order[4:] == ["many-3", "many-4"]
