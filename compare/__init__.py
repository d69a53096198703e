"""Comparisons with other libraries, each run in an environment of its own: `make compare`.

- `environments`: the environment of a peer, with its newest release
- `moving`: the patterns of docs/moving.md, what users of a peer write and what they write here, and whether both admit
  and deny the same
"""
