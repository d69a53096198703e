"""Thin adapters of `ratekeeper.http` to frameworks; each module needs its framework, and only that."""
