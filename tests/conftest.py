"""How many examples Hypothesis tries: HYPOTHESIS_PROFILE chooses a profile, and CI has its own."""

import os

from hypothesis import Phase, settings

settings.register_profile("default", deadline=None, print_blob=True, max_examples=40)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, max_examples=10)
settings.register_profile("quick", settings.get_profile("ci"))  # and fewer servers: see conformance/kit.py
settings.register_profile("long", settings.get_profile("default"), max_examples=1_000)
settings.register_profile(  # it is enough to know that a mutant fails: nothing is shrunk or explained
    "mutants",
    settings.get_profile("default"),
    derandomize=True,
    max_examples=20,
    phases=[Phase.explicit, Phase.generate],
    database=None,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django_settings")  # some modules read it at once
