"""Functions of the request that exempt it from all limits."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ratekeeper.flows import Flow
from ratekeeper.http.client_keys import of_request
from ratekeeper.http.request import Request
from ratekeeper.notices import Notices
from ratekeeper.rates import show

_log = logging.getLogger("ratekeeper")


class Exemptions:
    """The functions in the option `exempt`. Only True exempts a request; a function that fails exempts none."""

    def __init__(self, listed: Sequence[Any], notices: Notices, *, for_asyncio: bool) -> None:
        self._functions = [
            (f"exempt[{index}]", of_request(f"exempt[{index}]", each, for_asyncio=for_asyncio))
            for index, each in enumerate(listed)
            if callable(each)
        ]
        self._notices = notices
        self._failed: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._functions)

    def include(self, request: Request) -> Flow[bool]:
        """Tell whether one of the functions exempts a request."""
        for name, function in self._functions:
            try:
                exempts: Any = function(request)
                if hasattr(exempts, "__await__"):
                    exempts = yield exempts
                if not (exempts is None or isinstance(exempts, bool)):
                    raise TypeError(f"{name} must return True or False, not {show(exempts)}")
            except Exception as error:  # noqa: BLE001 - an error in the application's function must not fail the request
                if name not in self._failed:
                    self._failed.add(name)
                    _log.warning("%s failed; its requests are limited; this is logged once", name, exc_info=error)
            else:
                if exempts:
                    self._notices.note(
                        "unlimited", f"{name} returned True for a request: such requests are not limited"
                    )
                    return True
        return False
