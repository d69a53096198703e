"""The playground: a page that shows every algorithm at work, and the routes behind it.

Reading order:

- `visitors`: a session for each visitor, in a signed cookie
- `configs`: the list of algorithms for the page, and the bodies of the demo's requests
- `demo`: the demo's routes: hit, burst, state, reset
- `compare`: the route that runs the same traffic through all algorithms
- `files`: the static files of the page: `main.js` puts it together, `model.js` updates the server's state over time,
  `pictures.js` draws it

Words: the *demo* is the page with its cards, one for each algorithm and mode; a *config* is a rule in the demo's words,
such as `maxRequests`; a *drawn* traffic is one that the visitor has drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.playground import compare, demo, files

if TYPE_CHECKING:
    from ratekeeper.service.shared import Service
    from ratekeeper.service.web import Router

__all__ = ["mount"]


def mount(router: Router, service: Service) -> None:
    """Add the page and its routes."""
    files.mount(router)
    compare.mount(router)
    demo.mount(router, service)
