"""Many hits in one request: each is decided by itself, as `/v1/hit` decides it."""

import asyncio
import json

import pytest

from tests.service.serving import InProcess

TWO = "fixed-window 2/day"
JSON = {"content-type": "application/json"}


def batch(service, *requests):
    answer = service.ask("POST", "/v1/hit/batch", json={"requests": requests})
    assert answer.status_code == 200, answer.text
    return answer.json()["decisions"]


def without_times(decision):
    layers = {name: without_times(layer) for name, layer in decision["layers"].items()}
    return decision | {"reset_after": 0, "retry_after": 0, "layers": layers}


def test_each_decision_is_the_one_of_a_hit(service, key):
    bodies = [
        {"rule": TWO},
        {"rule": TWO, "cost": 3},
        {"algorithm": "token-bucket", "limit": 5, "cost": 2},
        {"rules": {"a": TWO, "b": "5/day"}, "cost": {"a": 2}},
    ]
    decided = batch(service, *[{"key": f"{key} batch {n}", **body} for n, body in enumerate(bodies)])
    single = [service.ask("POST", "/v1/hit", json={"key": f"{key} {n}", **body}) for n, body in enumerate(bodies)]
    assert [each["allowed"] for each in decided] == [True, False, True, True]
    assert list(map(without_times, decided)) == [without_times(answer.json()) for answer in single]


def test_decisions_come_in_the_order_of_the_requests(service, key):
    decided = batch(service, *[{"key": f"{key} {n}", "rule": f"fixed-window {n + 1}/day"} for n in range(300)])
    assert [each["limit"] for each in decided] == list(range(1, 301))


def test_what_one_request_consumes_counts_for_the_others(service, key):
    decided = batch(service, *[{"key": key, "rule": TWO}] * 5)
    assert sorted(each["allowed"] for each in decided) == [False, False, False, True, True]
    assert not any(each["degraded"] for each in decided)


def test_an_invalid_request_is_answered_by_its_error_and_the_others_by_decisions(service, key):
    good = {"key": key, "rule": "fixed-window 9/day"}
    decided = batch(service, good, {**good, "cost": 0}, {"key": "", "rule": TWO}, {**good, "color": "red"}, 7, good)
    errors = [each for each in decided if "error" in each]
    assert [each["remaining"] for each in decided if "error" not in each] == [8, 7]
    assert [each["field"] for each in errors] == ["cost", "key", "color", None]
    assert errors[0]["error"] == "cost must be an integer of at least 1, not 0"


@pytest.mark.parametrize("content", ['{"key": "k", "rule": "1/s", "key": "l"}', '{"key": "k"', "{]"])
def test_a_field_that_is_given_twice_concerns_its_request_alone_and_bad_json_the_batch(content):
    app = InProcess(playground=False)
    body = f'{{"requests": [{{"key": "k", "rule": "1/s"}}, {content}]}}'
    answer = app.ask("POST", "/v1/hit/batch", content=body.encode(), headers=JSON)
    if content.endswith('"l"}'):
        assert answer.json()["decisions"][0]["remaining"] == 0
        assert answer.json()["decisions"][1] == {"error": "the field 'key' is given more than once", "field": "key"}
    else:
        assert (answer.status_code, answer.json()["field"]) == (400, "requests")
        assert app.app.service.store.size == 0


def test_a_batch_has_at_most_1000_requests(service, key):
    hit = {"key": key, "rule": "fixed-window 5000/day"}
    assert batch(service, *[hit] * 1_000)[-1]["allowed"]
    answer = service.ask("POST", "/v1/hit/batch", json={"requests": [hit] * 1_001})
    assert (answer.status_code, answer.json()["field"]) == (400, "requests")
    assert batch(service, hit)[0]["remaining"] == 3_999
    assert batch(service) == []


def test_a_batch_has_at_most_512_kib(service, key):
    body = json.dumps({"requests": [{"key": key, "rule": TWO}]}).encode()
    assert service.ask("POST", "/v1/hit/batch", content=body.ljust(512 * 1024), headers=JSON).status_code == 200
    answer = service.ask("POST", "/v1/hit/batch", content=body.ljust(512 * 1024 + 1), headers=JSON)
    assert (answer.status_code, answer.json()["detail"]) == (413, "the body must have at most 524288 bytes")


def test_a_batch_is_counted_as_so_many_decisions():
    app = InProcess(playground=False)
    batch(app, *[{"key": "k", "rule": TWO}] * 5, {})
    live = app.ask("GET", "/v1/live").json()
    assert (live["admitted"], live["denied"]) == (2, 3)


async def ask(app, path, body):
    """Ask the application, and return the status of its answer."""
    sent = []
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "client": ("127.0.0.1", 1)}
    scope["headers"] = [(b"host", b"localhost"), (b"content-type", b"application/json")]

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"]


def most_between_turns(counted, *bodies, **options):
    """Ask for all of these at once; return by how much a count grows at most before others have their turn."""
    app = InProcess(playground=False, **options).app

    async def main():
        asked = [asyncio.ensure_future(ask(app, "/v1/hit/batch", body)) for body in bodies]
        most = before = 0
        while not all(each.done() for each in asked):
            await asyncio.sleep(0)
            now = counted(app.service)
            most, before = max(most, now - before), now
        assert {each.result() for each in asked} == {200}
        return most

    return asyncio.run(main())


def test_others_have_their_turn_after_400_hits_however_many_batches_there_are():
    large = {"requests": [{"key": "k", "rule": "fixed-window 5/day"}] * 1_000}
    assert most_between_turns(lambda service: service.figures.live_report()["denied"], *[large] * 10) <= 400


def test_others_have_their_turn_after_400_rules_however_many_a_request_has():
    rules = {str(number): f"fixed-window {number + 1}/day" for number in range(32)}
    large = {"requests": [{"key": f"{number}", "rules": rules} for number in range(100)]}
    assert most_between_turns(lambda service: service.store.size, *[large] * 3) <= 400 + 2 * 31


def test_others_have_their_turn_after_400_rules_also_if_policies_decide():
    rules = [{"name": f"{number}", "limit": f"{number + 1}/day", "key": "{user}"} for number in range(32)]
    large = {"requests": [{"policy": "api", "attributes": {"user": number}} for number in range(100)]}
    policies = json.dumps({"policies": {"api": {"rules": rules}}})
    assert most_between_turns(lambda service: service.store.size, large, policies=policies) <= 200 + 31
