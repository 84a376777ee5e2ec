import pytest

from api.cli.__main__ import main
from api.service.errors import Unauthenticated
from api.service.keys import KeyService
from profiles_db.engine import Database


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["keys", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_life_of_a_key(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--database-url", database_url)
    code, token, told = run(capsys, "create", "launcher", "--tenant", "team-a", "--expires-days", "30", *at)
    assert code == 0
    assert "team-a" in told
    assert token.strip() not in told
    database = Database(database_url)
    service = KeyService(database)
    caller = service.verify(token.strip())
    assert (caller.tenant, caller.name, sorted(caller.scopes)) == ("team-a", "launcher", ["plan", "read"])
    key_id = token.split("_")[1]
    code, listed, _ = run(capsys, "list", *at)
    assert code == 0
    assert [word in listed for word in (key_id, "team-a", "launcher", "until 2")] == [True] * 4
    assert token.split("_", 2)[2].strip() not in listed
    assert "launcher" not in run(capsys, "list", "--tenant", "team-b", *at)[1]
    new = run(capsys, "rotate", key_id, *at)[1].strip()
    with pytest.raises(Unauthenticated):
        service.verify(token.strip())
    assert service.verify(new) == caller
    assert run(capsys, "revoke", key_id, *at)[0] == 0
    with pytest.raises(Unauthenticated):
        service.verify(new)
    assert "revoked 2" in run(capsys, "list", *at)[1]
    database.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("create", "x", "--scope", "root"), "scopes[0]"),
        (("create", "x", "--tenant", "Team A"), "lower-case"),
        (("create", "x", "--expires-days", "0"), "--expires-days"),
        (("revoke", "0000"), "there is no key 0000"),
        (("rotate", "0000"), "there is no key 0000"),
    ],
)
def test_what_cannot_be_done(
    tmp_path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, out, error = run(capsys, *words, "--database-url", f"sqlite:///{tmp_path / 'x.db'}")
    assert (code, out) == (2, "")
    assert told in error
