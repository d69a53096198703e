"""Which limits apply to a request, however its path and method are written."""

import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratekeeper import FixedWindow, InvalidRule
from ratekeeper.http import Answer, AsyncGate, Gate, Route, by_path, combine
from ratekeeper.http.url_paths import below, exact_test, folded, lenient_test, normalized
from ratekeeper.testing import ManualClock
from tests.faces import loop
from tests.http.requests import a_request

TWO = FixedWindow(2, "400 days")


def named(name, limit=2):
    return {name: FixedWindow(limit, "400 days")}


def charged(gate, path, method="GET", root_path=""):
    """The names of the rules that a request was charged to."""
    request = a_request(path=path, method=method)
    request.root_path = root_path
    admission = gate.admit(request)
    return set() if admission is None else {each.decision.rule for each in admission.all}


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/login", "/login"),
        ("/Users/7.json", "/Users/7.json"),
        ("/login\n", "/login"),
        ("/login\r\n", "/login"),
        ("//login", "/login"),
        ("/login/", "/login"),
        ("login", "/login"),
        ("/a//b///c", "/a/b/c"),
        ("/./a/./b/.", "/a/b"),
        ("/a/../b", "/b"),
        ("/../../b", "/b"),
        ("/a/b/..", "/a"),
        ("\\a\\b", "/a/b"),
        ("/a /b\t", "/a/b"),
        ("/...", "/..."),
        ("/a..b/.c", "/a..b/.c"),
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        ("/..", "/"),
        ("*", "/*"),
        ("/\ufffd", "/\ufffd"),
    ],
)
def test_a_normalized_path_has_nothing_that_applications_ignore(path, normal):
    assert normalized(path) == normal


def test_what_a_pattern_that_ignores_case_takes_for_a_letter_is_folded_to_it():
    characters = "".join(map(chr, range(0x110000)))
    taken = {letter: re.findall(letter, characters, re.IGNORECASE) for letter in string.ascii_lowercase}
    assert sum(map(len, taken.values())) >= 2 * 26 + 4
    assert {letter: {*map(folded, each)} for letter, each in taken.items()} == {letter: {letter} for letter in taken}


@pytest.mark.parametrize(
    ("one", "another"),
    [("/Stra\u00dfe", "/STRASSE"), ("/café", "/CAFÉ"), ("/\u03a3", "/\u03c2"), ("/\u0130", "/i")],
)
def test_paths_that_some_application_takes_for_the_same_are_folded_to_one(one, another):
    assert folded(one) == folded(another)


@given(st.text("ab./\\ \n%;é", max_size=12))
def test_normalizing_twice_changes_nothing(path):
    assert normalized(normalized(path)) == normalized(path)


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("", "/login", "/login"),
        ("/api", "/api/login", "/login"),
        ("/api", "/login", "/login"),
        ("/api", "/api", ""),
        ("/api", "/apis", "/apis"),
        ("/api", "/api/api/login", "/api/login"),
        ("/api/", "/api//login", "/login"),
    ],
)
def test_a_path_below_the_root_path_is_what_starlette_routes(root, path, expected):
    from starlette._utils import get_route_path

    assert below(root, path) == expected
    assert get_route_path({"path": path, "root_path": root}) == expected


SPELLINGS = [
    *("/login", "/login\n", "//login", "/login/", "login", "/./login", "/x/../login", "/LOGIN", "\\login"),
    *("/Login/\n", "/../login", " /login ", "/login/.", "/\u017fogin/../login"),
]


@pytest.mark.parametrize("path", SPELLINGS)
@pytest.mark.parametrize("method", ["POST", "post", "Post"])
def test_a_limit_applies_however_path_and_method_are_written(path, method):
    gate = Gate(named("all", 100), routes=[Route("/login", named("login"), methods=["POST"])])
    assert "login" in charged(gate, path, method)


@pytest.mark.parametrize(("root", "path"), [("/api", "/login"), ("/api", "/login\n"), ("", "/api/login")])
def test_a_route_may_be_written_with_or_without_the_root_path(root, path):
    for written in {"/login", "/api/login"} if root else {"/api/login"}:
        gate = Gate(named("all"), routes=[Route(written, named("login"))])
        assert "login" in charged(gate, path, root_path=root)
    gate = Gate(named("all"), routes=[Route("/login", named("login"))])
    assert charged(gate, "/login", root_path="/api") == {"login"}  # and nothing else


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("/users/{id}", ["/users/7", "/users/7\n", "//users/7/", "/USERS/x"], ["/users", "/users/7/posts"]),
        ("/api/*", ["/api/x", "/api//x", "/api", "/api/", "/API/x/y", "/x/../api/y"], ["/apis", "/"]),
        ("/api*", ["/api", "/apis", "/api/x", "/API"], ["/ap"]),
        ("/files/{name:path}", ["/files/a/b", "/files/a", "/files//a", "/files/"], ["/file", "/filesx"]),
        ("/{tenant:path}/edit", ["/a/edit", "/a/b/edit", "/a/b/edit/"], ["/edit/a"]),
        ("/{user}/posts/{post:int}", ["/ada/posts/7", "/ada//posts/7"], ["/ada/posts", "/posts/7"]),
        ("/", ["/", "", "//", "/.", "/a/.."], ["/a"]),
        ("/*", ["/", "/a", "/a/b", "a"], []),
        ("*", ["/", "/a", "*", ""], []),
        ("/Search/", ["/Search/", "/search", "/SEARCH//"], ["/searches"]),
        ("/straße", ["/straße", "/STRASSE"], ["/strase"]),
    ],
)
def test_a_pattern_covers_what_may_be_read_as_it(pattern, matching, other):
    gate = Gate(routes=[Route(pattern, named("it", 1000))])
    assert [path for path in matching if charged(gate, path) != {"it"}] == []
    assert [path for path in other if charged(gate, path)] == []


def test_a_pattern_that_cannot_be_read_is_refused():
    for pattern in ("/a/{b", "/a/{}", "/a/{b{c}}", "/a/{b/c}", "/a/{b:c:d}"):
        with pytest.raises(InvalidRule, match="write a parameter as"):
            Gate(routes=[Route(pattern, TWO)])
    with pytest.raises(InvalidRule, match="may have only one"):
        Gate(routes=[Route("/{a:path}/b/{c:path}/d", TWO)])


PARAMETERS = {"{a}": "[^/]+", "{b:path}": ".*"}
PATTERNS = st.lists(st.sampled_from(["{a}", "{a}", "-", "x", "/", "--"]), max_size=7).map(lambda parts: ["/", *parts])


@given(PATTERNS, st.integers(0, 8), st.text("-x/", max_size=9).map("/{}".format))
@example(["/", "{a}", "-", "{a}"], 8, "/--x")
@example(["/", "{a}", "{a}"], 8, "/x")
@example(["/", "/x/", "{a}", "/x"], 1, "/x/x/x/x/x")
def test_a_pattern_matches_what_its_parameters_stand_for(parts, at, path):
    parts = [*parts[:at], "{b:path}", *parts[at:]] if 0 < at < 8 else parts
    expected = re.fullmatch("".join(PARAMETERS.get(part) or re.escape(part) for part in parts), path)
    assert exact_test("".join(parts))(path) == (expected is not None)


@pytest.mark.parametrize(
    "pattern", ["/{a}-{b}-{c}-{d}/x", "/{a:path}-{b}-{c}/x", "/{a}{b}{c}/x", "/{a}/{b}/{c}x", "/{a}-x"]
)
@pytest.mark.parametrize("path", ["/" + "-" * 60_000, "/" + "-/" * 30_000, "/-" * 30_000])
def test_no_path_takes_long_to_match(pattern, path):
    """With a regular expression that tries all splits, this takes hours."""
    for test in (exact_test(pattern), lenient_test(pattern)):
        assert not test(path)


def test_no_path_takes_long_to_fold():
    """If accents were put in order, as in a normal form of Unicode, this would take half an hour."""
    path = "/a" + "\u0301\u0323" * 300_000
    assert folded(path.upper()) == folded(path)


@pytest.mark.parametrize("path", ["//cheap", "/cheap/", "/CHEAP", "/cheap\n", "/x/../cheap"])
def test_what_is_read_as_one_route_and_written_as_another_counts_for_both(path):
    gate = Gate(routes=[Route("/cheap", named("cheap", 1000)), Route("/*", named("dear", 2))])
    assert charged(gate, "/cheap") == {"cheap"}
    assert charged(gate, "/dear") == {"dear"}
    assert charged(gate, path) == {"cheap", "dear"}
    denied = gate.admit(a_request(path=path))
    assert (denied.decision.allowed, denied.decision.rule) == (False, "dear")
    assert gate.admit(a_request(path="/cheap")).decision.remaining == 997  # a denial gives back what the other took


def test_routes_that_count_together_count_once():
    routes = [Route(path, named("items"), name="items") for path in ("/items", "/items/")]
    gate = Gate(routes=routes)
    assert charged(gate, "/items/") == {"items"}
    assert gate.admit(a_request(path="/items/")).decision.remaining == 0


def test_the_first_of_the_routes_that_match_applies():
    gate = Gate(routes=[Route("/a/b", named("one")), Route("/a/{x}", named("two")), Route("/a/*", named("three"))])
    assert [charged(gate, path) for path in ("/a/b", "/a/c", "/a/b/c")] == [{"one"}, {"two"}, {"three"}]


@pytest.mark.parametrize("root", ["", "/api"])
@pytest.mark.parametrize("exempting", ["exempt", "a route without a limit"])
def test_an_exemption_is_for_the_path_as_it_stands(exempting, root):
    if exempting == "exempt":
        gate = Gate(named("all", 1000), exempt=["/healthz", "GET /open/*"])
    else:
        gate = Gate(named("all", 1000), routes=[Route("/healthz", None), Route("/open/*", None, methods=["GET"])])
    for path in ("/healthz", "/open/x", "/open/", "/open/x/../y"):
        assert charged(gate, path, root_path=root) == set()
    for path in (
        *("/healthz\n", "//healthz", "/healthz/", "/HEALTHZ", "healthz", "/./healthz", "/x/../healthz", "/api/healthz"),
        *("/open", "/OPEN/x", "//open/x", "/open/../login", "/open/x/../../login", "/open\\x"),
    ):
        assert charged(gate, path, root_path=root) == {"all"}
    assert charged(gate, "/open/x", "POST", root_path=root) == {"all"}


def test_an_exemption_that_is_left_meets_the_limit_of_where_it_leads():
    gate = Gate(named("all", 1000), exempt=["/open/*"], routes=[Route("/login", named("login"))])
    assert charged(gate, "/open/../login") == {"login"}


def test_both_limits_are_settled():
    size = Route("/sized", {"sized": FixedWindow(100, "400 days")}, cost=10, settle=lambda request, answer: answer.size)
    gate = Gate({"all": FixedWindow(1000, "400 days")}, routes=[size], settle=lambda request, answer: 7)
    request = a_request(path="/sized/")
    admission = gate.admit(request)
    assert admission.settles
    gate.settle(request, admission, Answer(200, 30))
    gate.correct(gate.admit(request), 5)
    remaining = {each.decision.rule: each.decision.remaining for each in gate.admit(request).all}
    assert remaining == {"sized": 100 - 30 - 5 - 10, "all": 1000 - 7 - 5 - 1}


@pytest.mark.parametrize("kind", [Gate, AsyncGate])
def test_the_longest_of_two_delays_holds_and_both_are_left(kind):
    routes = [Route("/slow", "leaky-bucket 1/s burst 9 shaping"), Route("/*", "leaky-bucket 2/s burst 9 shaping")]
    gate = kind(routes=routes, max_waiters_per_key=1, clock=ManualClock(1_700_000_000))

    def admit():
        found = gate.admit(a_request(path="/slow/"))
        return found if kind is Gate else loop.run_until_complete(found)

    assert admit().decision.delay == 0
    held = admit()
    assert held.decision.delay == 1
    assert [each.is_held for each in held.all] == [True, True]
    assert not admit().decision.allowed  # one is held already
    gate.leave(held)
    assert admit().decision.allowed


def test_paths_that_an_application_reads_alike_are_one_key():
    key = combine(by_path(), by_path())
    for path in ("/search", "/search\n", "//search", "/search/", "/./search"):
        assert key(a_request(path=path)) == ("path:/search", "path:/search")
    assert by_path()(a_request(path="/Search")) == "path:/Search"
    request = a_request(path="/search")
    request.root_path = "/api"
    assert by_path()(request) == "path:/api/search"


def route_of(path):
    """What Python's own comparison says of a path as it is written."""
    return "first" if path == "/a/b" else "second" if path.startswith("/a/") else "all"


@given(
    st.lists(st.sampled_from(["/", "a", "A", "b", ".", "..", "\n", " ", "\\", "x", "/a/b"]), max_size=8).map("".join)
)
@example("/a/b/../b")
def test_whatever_an_application_reads_counts(path):
    routes = [Route("/a/b", named("first")), Route("/a/*", named("second"))]
    found = charged(Gate(named("all"), routes=routes), path)
    assert route_of(path) in found
    read = normalized(path).casefold()
    assert route_of(read) in found or read == "/a"  # which "/a/*" covers as well
