"""Finds the routes of a request."""

from __future__ import annotations

from collections.abc import Sequence

from ratekeeper.http.request import Request, root_of
from ratekeeper.http.route_limits import RouteLimit
from ratekeeper.http.url_paths import folded, normalized
from ratekeeper.notices import Notices

NOT_CONFIGURED = "no limit is configured; pass a limit or routes"
SWITCHED_OFF = "all limits are switched off, by enabled=False or in the settings; enable them to enforce the rules"


class RouteTable:
    """The routes of a gate, in order; the last one matches every request.

    A request that is written in an unusual way may match one route as it is written and another as an application
    reads it. Either view may run, so both limits apply. Only a path as it is written can be exempt.
    """

    def __init__(self, route_limits: Sequence[RouteLimit]) -> None:
        ends = next(count for count, each in enumerate(route_limits, 1) if each.matcher.is_all)
        self._routes = [(*each.matcher[:3], each.is_exempt, each) for each in route_limits[:ends]]
        self.only = route_limits[0] if ends == 1 else None
        """The route, if there is only one that can match."""

    def find(self, request: Request) -> Sequence[RouteLimit]:
        """Return the routes whose limits apply, nearly always one."""
        method, path, root = request.method.upper(), request.path, root_of(request)
        read = folded(normalized(path))
        is_usual = read == path  # such a path matches the same routes as written and as read
        # A pattern may also include the path that the application is mounted at.
        full, full_read = (root + path, folded(normalized(root + path))) if root else (path, read)
        written_as: RouteLimit | None = None
        read_as: RouteLimit | None = None
        for methods, is_path, may_be_path, is_exempt, each in self._routes:
            if methods is not None and method not in methods:
                continue
            matches = may_be_path(read) or (root and may_be_path(full_read))
            if is_usual and not matches:
                continue
            if written_as is None and (is_path(path) or (root and not is_exempt and is_path(full))):
                written_as = each
            if read_as is None and matches and (each is written_as or not is_exempt):
                read_as = each
            if written_as is not None and read_as is not None:
                break
        if written_as is read_as and written_as is not None:  # nearly always
            return () if written_as.is_exempt else (written_as,)
        if read_as is None or (written_as is not None and written_as.counts_as(read_as)):
            read_as = None
        return [each for each in (read_as, written_as) if each is not None and not each.is_exempt]


class NoRoutes:
    """What a gate without any limit has instead."""

    def __init__(self, notices: Notices, reason: str) -> None:
        self._notices = notices
        self._reason = reason

    def find(self, _: Request) -> Sequence[RouteLimit]:
        """Count the request as unlimited; the first one is logged."""
        self._notices.note("unlimited", self._reason)
        return ()
