import asyncio

import pytest

from ratekeeper import InvalidRule
from ratekeeper.http import by_address, by_api_key, by_header, by_path, by_user, combine, first_of
from tests.http.requests import a_request


def test_the_user_is_a_key():
    assert by_user()(a_request(user="ada")) == "user:ada"


@pytest.mark.parametrize("user", [None, ""])
def test_nobody_has_no_key(user):
    assert by_user()(a_request(user=user)) is None


@pytest.mark.parametrize(("user", "key"), [("ada", "user:ada"), (None, None)])
def test_a_user_may_have_to_be_awaited(user, key):
    async def main():
        async def find():
            return user

        return await by_user()(a_request(user=find()))

    assert asyncio.run(main()) == key


def test_no_user_can_take_the_key_of_an_address():
    assert by_user()(a_request(user="192.0.2.1")) != by_address()(a_request(peer="192.0.2.1"))


def test_an_api_key_is_hashed():
    key = by_api_key()(a_request(headers={"X-API-Key": "secret"}))
    assert key == "api-key:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"


def test_an_api_key_can_be_a_bearer_token():
    token = by_api_key("Authorization", scheme="Bearer")
    assert token(a_request(headers={"Authorization": "bearer secret"})) == by_api_key()(
        a_request(headers={"X-API-Key": "secret"})
    )
    assert token(a_request(headers={"Authorization": "Basic secret"})) is None
    assert token(a_request(headers={"Authorization": "Bearer"})) is None


@pytest.mark.parametrize("headers", [[], [("X-API-Key", "")], [("X-API-Key", "a"), ("X-API-Key", "b")]])
def test_no_api_key_or_two_are_no_key(headers):
    assert by_api_key()(a_request(headers=headers)) is None
    assert by_header("x-api-key")(a_request(headers=headers)) is None


def test_a_header_is_a_key():
    assert by_header("X-Tenant")(a_request(headers={"x-tenant": "acme"})) == "header:x-tenant:acme"


def test_two_headers_are_two_kinds():
    request = a_request(headers={"a": "1", "b": "1"})
    assert by_header("a")(request) != by_header("b")(request)


def test_the_path_is_a_key():
    assert by_path()(a_request(path="/a/b")) == "path:/a/b"


def test_a_long_value_is_hashed_and_still_one_key():
    one, other = (by_path()(a_request(path="/" + letter * 5000)) for letter in "ab")
    assert len(one) < 100
    assert one != other
    assert one == by_path()(a_request(path="/" + "a" * 5000))


def test_keys_are_combined():
    key = combine(by_address(), by_path())
    assert key(a_request(path="/x")) == ("address:192.0.2.1", "path:/x")


def test_a_combination_with_a_part_missing_has_no_key():
    assert combine(by_address(), by_user())(a_request()) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((("a", "b"), "c"), ("a", ("b", "c"))),
        ((("a",), "b"), ("a", "b")),
        (((1, 2), 1), (1, (2, 1))),
        ((("2", 1), "y"), ("2", (1, "y"))),
        (((2,), (1,)), (1, (2, 1))),
    ],
)
def test_combinations_of_other_parts_do_not_collide(one, other):
    def combined(parts):
        return combine(*(lambda _, part=part: part for part in parts))(a_request())

    assert combined(one) != combined(other)


def test_the_first_that_has_a_key_counts():
    key = first_of(by_user(), by_address())
    assert key(a_request(user="ada")) == "user:ada"
    assert key(a_request()) == "address:192.0.2.1"
    assert first_of(by_user(), by_api_key())(a_request()) is None


async def found(request):
    return "found"


async def missing(request):
    return None


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (combine(by_path(), found, by_address()), ("path:/", "found", "address:192.0.2.1")),
        (combine(found, missing, by_path()), None),
        (combine(found, found), ("found", "found")),
        (first_of(missing, by_user(), found, by_path()), "found"),
        (first_of(by_user(), missing), None),
        (first_of(found, missing), "found"),
    ],
)
def test_parts_may_be_coroutine_functions(key, expected):
    assert asyncio.run(key(a_request())) == expected


def test_a_part_that_is_no_function_is_refused_with_its_place():
    with pytest.raises(TypeError, match=r"combine\[1\] must be a callable that takes the request, not 'user'"):
        combine(by_path(), "user")


def test_a_part_that_does_not_take_the_request_is_refused():
    with pytest.raises(TypeError, match=r"first_of\[0\] must take one argument, the request"):
        first_of(lambda one, two: "k")


def test_nothing_cannot_be_combined():
    with pytest.raises(InvalidRule, match="combine needs at least one key function"):
        combine()


@pytest.mark.parametrize("name", ["", "a b", "x:y", None])
def test_what_cannot_be_a_header_is_refused(name):
    with pytest.raises(InvalidRule, match="is not a valid header name"):
        by_header(name)
