"""Decisions on a Redis server, which the benchmark starts itself, on this machine and without persistence.

Read `contestants` first (what is measured, and in which configuration), then `load` (how concurrent callers are
measured), then the suites: `lone`, `callers`, `threads`, `denied`, `memory`, `keys`. Times are elapsed times, since
the server is a separate process.
"""

from bench.redis import callers, denied, keys, lone, memory, threads

SUITES = (lone, callers, threads, denied, memory, keys)
