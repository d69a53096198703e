"""The tests. The first import keeps forked children from measuring coverage.

Coverage has a lock of its own. If another thread holds it at the moment of the fork, the child would wait for ever.
"""

import functools
import os
import sys

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=functools.partial(sys.settrace, None))  # no Python frame, which would be traced
