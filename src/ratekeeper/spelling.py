"""What somebody may have meant who wrote an unknown word."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_WORD = 64


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to this one, if one is similar.

    >>> nearest("slidng-window-log", ["sliding-window-log", "fixed-window"])
    'sliding-window-log'
    """
    if not isinstance(word, str) or len(word) > LONGEST_WORD:
        return None
    import difflib  # here, because most programs never make a mistake

    by_folded = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(word.casefold(), by_folded, 1)
    return by_folded[found[0]] if found else None
