"""`ratekeeper override`, against a service that runs."""

import json

import pytest

from ratekeeper.cli import main
from tests.service.operating import text
from tests.service.serving import Served


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("secret\n")
    served = Served("memory://", "--policies", "store", "--token-file", str(token))
    served.token_file = str(token)
    headers = {"authorization": "Bearer secret", "if-match": "0"}
    served.ask("PUT", "/v1/policies", content=text(), headers=headers).raise_for_status()
    yield served
    served.stop()


@pytest.fixture
def override(service, capsys, monkeypatch):
    monkeypatch.setenv("RATEKEEPER_URL", service.url)
    monkeypatch.setenv("RATEKEEPER_TOKEN", "secret")

    def run(*arguments):
        status = main(["override", *arguments])
        said = capsys.readouterr()
        return status, said.out.splitlines(), said.err.splitlines()

    return run


def remaining(service, **attributes):
    answer = service.ask("POST", "/v1/peek", json={"policy": "api", "attributes": {"user": "ada", **attributes}})
    return answer.json()["remaining"]


LAUNCH = ("launch", "--policy", "api", "--limits", "user=fixed-window 50/day", "--expires-in", "2h")


def test_an_override_is_set_listed_and_removed(service, override):
    status, (told,), _ = override("set", *LAUNCH, "--when", "plan=pro", "plan=team", "user=ada")
    assert (status, told[:30]) == (0, "launch: in force until 20" + told[25:30])
    assert [remaining(service, plan=plan) for plan in ("pro", "team", "free")] == [50, 50, 5]
    status, (told,), _ = override("list")
    assert told.startswith("launch: api, plan=pro or team, user=ada: user fixed-window 50/day, until ")
    (listed,) = json.loads(override("list", "--json")[1][0])
    assert 7_100 < listed["expires_in"] <= 7_200
    assert override("remove", "launch") == (0, ["launch: removed"], [])
    assert remaining(service, plan="pro") == 5
    assert override("list") == (0, ["no overrides are in force"], [])


def test_one_word_is_for_all_rules(service, override):
    assert override("set", "x", "--policy", "api", "--limits", "blocked", "--expires-in", "60")[0] == 0
    assert service.ask("POST", "/v1/hit", json={"policy": "api", "attributes": {"user": "ada"}}).status_code == 429
    override("remove", "x")


def test_the_service_says_what_it_refuses(override):
    status, _, errors = override("set", "a b", "--policy", "apj", "--limits", "user=1/s", "--expires-in", "60")
    assert status == 1
    assert errors[1] == "ratekeeper override: policy: must be one of the policies api, not 'apj'; did you mean 'api'?"
    assert override("remove", "x") == (1, [], ["ratekeeper override: no override 'x' is in force"])


def test_the_token_is_needed(override, service, monkeypatch):
    monkeypatch.delenv("RATEKEEPER_TOKEN")
    assert override("list")[2] == ["ratekeeper override: this call requires the header Authorization: Bearer TOKEN"]
    assert override("list", "--token-file", service.token_file)[0] == 0
    assert override("list", "--token-file", "nothing here")[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--url", "http://127.0.0.1:1"),
        ("list", "--url", "localhost:8080"),
        ("list", "--url", "file:///etc/passwd"),
        ("set", *LAUNCH, "--when", "plan"),
        ("set", *LAUNCH, "--when", "=pro"),
        ("set", *LAUNCH[:-1], "later"),
        ("set", *LAUNCH[:4], "user", "--expires-in", "1h", "--when", "x"),
        ("set", "launch"),
        ("sit",),
        (),
    ],
)
def test_invalid_input_and_a_service_out_of_reach_are_told_in_one_line(override, capsys, arguments):
    try:
        status, _, errors = override(*arguments)
    except SystemExit as ended:
        status, errors = ended.code, capsys.readouterr().err.splitlines()
    assert (status, len(errors)) == (2, 1)
    assert errors[0].startswith("ratekeeper override")
