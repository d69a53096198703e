"""Policies: named sets of rules in a file that a team changes without a deployment.

    >>> from ratekeeper.policies import Policies
    >>> policies = Policies.load('{"policies": {"api": {"rules": [{"name": "all", "limit": "9/s", "key": "all"}]}}}')
    >>> policies.limiter("api").hit({}).remaining
    8

Reading order:

- `model` is what a file says: policies, rules, overrides. `conditions` are its `when`, `templates` its keys and costs,
  `attributes` what a request says about itself, and `caller_hashes` who may ask the service.
- `documents` reads a file as plain data with the line of every value, by way of `text_lines` (TOML and JSON) and
  `yaml_reading`. `build` makes the model from it and finds all `mistakes`.
- `versions` turns a call into demands on a store; `overrides` finds the one that counts, and `runtime_overrides` are
  set and removed without the file. `policy_rules` are the rules of a limiter, whose version may change.
- `explaining` shows which rules a request would meet, `differences` what changes between two files, and `schema` helps
  editors.
- `policies` is what applications use: it makes limiters, and changes what they follow.

A *version* is a policy with its overrides as one limiter enforces it; each call is decided by one version.
"""

from ratekeeper.policies.attributes import InvalidAttribute
from ratekeeper.policies.mistakes import InvalidPolicies, Mistake
from ratekeeper.policies.model import Override, Policy, PolicyRule
from ratekeeper.policies.policies import Policies, UnknownPolicy
from ratekeeper.policies.runtime_overrides import RuntimeOverride

__all__ = [
    "InvalidAttribute",
    "InvalidPolicies",
    "Mistake",
    "Override",
    "Policies",
    "Policy",
    "PolicyRule",
    "RuntimeOverride",
    "UnknownPolicy",
]
