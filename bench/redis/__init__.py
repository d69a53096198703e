"""Decisions on a Redis server: a process that the benchmark starts itself, on this machine, with nothing on disk.

Read `contestants` first (who is measured, and in which configuration), then `load` (how concurrent callers are
measured), then the suites: `lone`, `callers`, `threads`, `denied`, `memory`, `keys`. Times are those of the clock on
the wall, since the server is a process of its own.
"""

from bench.redis import callers, denied, keys, lone, memory, threads

SUITES = (lone, callers, threads, denied, memory, keys)
