"""The benchmarks: every figure that this project states about its speed comes from here.

Run `python -m bench` from the repository's root. Read `timing` first (how a figure is measured), then
`contestants` and `peers` (what is measured, and in which configuration), then the suites: `decision`, `keys`,
`memory`, `threads`, `log`, `waiting`, `fresh`, `sqlite`, and those on a server in `redis`. A suite is a module with
`NAME`, `TITLE`, `ABOUT`, `run`, `tables` and `targets`, listed in `__main__`.
"""
