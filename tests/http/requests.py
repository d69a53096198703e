"""A request made by hand, for tests that need no framework."""

from ratekeeper.http import Request


class MadeRequest:
    def __init__(self, path="/", method="GET", headers=(), peer="192.0.2.1", user=None):
        self.path = path
        self.method = method
        self.peer = peer
        self.user_id = user
        self.raw = {}
        self._headers = [
            (name.lower(), value) for name, value in (headers.items() if hasattr(headers, "items") else headers)
        ]

    def header(self, name):
        return [value for known, value in self._headers if known == name]


def a_request(**given) -> Request:
    return MadeRequest(**given)
