"""The settings of the Django project that real servers run, and that tests without a server use."""

import os
import tempfile
from pathlib import Path

from ratekeeper import FixedWindow
from ratekeeper.http import Route, by_header

LONG = "400 days"  # a window that does not end while the tests run

SECRET_KEY = "for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.integrations.django_urls"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "rest_framework"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.middleware.common.CommonMiddleware",
    "ratekeeper.integrations.django.RateLimitMiddleware",
]
# The servers need no database; the tests without one have users, and delete the file.
FILE = Path(tempfile.gettempdir()) / f"ratekeeper-tests-{os.getpid()}.sqlite3"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:" if "RATEKEEPER_STORE" in os.environ else FILE,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_RATES": {"scoped": "fixed-window 2/day"},
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
}
RATEKEEPER = {
    "limit": {"three": FixedWindow(3, LONG)},
    "key": by_header("x-client"),
    "exempt": ["/healthz", "/seen"],
    "routes": [Route(path, None) for path in ("/plan", "/sized", "/concurrent", "/shaped", "/brief", "/rest/*")],
    "store": os.environ.get("RATEKEEPER_STORE", "memory://"),
    "on_error": "raise",  # a fallback would hide a broken engine
    "deadline": 10,  # the machine may be busy
}
