import pytest

from ratekeeper import InvalidRule
from ratekeeper.stores import MemoryStore, from_url


@pytest.mark.parametrize("url", ["memory://", "async+memory://"])
def test_memory_is_a_store_of_its_own(url):
    assert isinstance(from_url(url), MemoryStore)
    assert from_url(url) is not from_url(url)


@pytest.mark.parametrize("url", ["", "memory", "memory:", "ftp://x", "://", "redus://localhost"])
def test_an_unknown_scheme_is_refused_with_the_url(url):
    with pytest.raises(InvalidRule) as caught:
        from_url(url)
    assert f"store {url!r} has an unknown scheme; use " in str(caught.value)


def test_memory_takes_nothing_behind_it():
    with pytest.raises(
        InvalidRule, match=r"store 'memory://x' has something behind 'memory://'; .*MemoryStore\(max_keys"
    ):
        from_url("memory://x")
