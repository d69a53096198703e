"""The playground: a page that shows every algorithm at work, and the routes that it stands on.

To read it: `visitors` tells people apart; `configs` lists the algorithms for the page and reads what the demo's bodies
ask for; `routes` answers them; `compare` runs traffic through all the algorithms; `files` serves the page itself, which
is in `static/`: `main.js` puts it together, `model.js` moves the server's state on in time, `pictures.js` draws it.
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
