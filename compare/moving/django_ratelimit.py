"""The programs that the lines of django-ratelimit's patterns stand in, and those of ours."""

from compare.moving.page import OURS, THEIRS
from compare.moving.peer import Peer

# A signed-in user is the one whom the header X-User names. As django-ratelimit's cookbook says, a handler answers
# denied requests with status 429, which is otherwise 403.
_IMPORTS = """
import django
import os
from django.conf import settings
if "DJANGO_SETTINGS_MODULE" not in os.environ and not settings.configured:
    apps = ["django.contrib.auth", "django.contrib.contenttypes"]
    settings.configure(SECRET_KEY="for trials", ALLOWED_HOSTS=["*"], INSTALLED_APPS=apps)
django.setup()
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpResponse, HttpResponseForbidden, JsonResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from uuid import uuid4

NUMBERS = {"ada": 1, "bob": 2}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": uuid4().hex}}
MIDDLEWARE = ["program.sign_in"]

def sign_in(get_response):
    def serve(request):
        name = request.headers.get("X-User")
        request.user = User(pk=NUMBERS[name], username=name) if name else AnonymousUser()
        return get_response(request)
    return serve
"""
_THEIR_IMPORTS = f"""{_IMPORTS}
from django_ratelimit import ALL, UNSAFE
from django_ratelimit.core import get_usage, is_ratelimited
from django_ratelimit.decorators import ratelimit
from django_ratelimit.exceptions import Ratelimited

def handler403(request, exception=None):
    if isinstance(exception, Ratelimited):
        return HttpResponse("Sorry you are blocked", status=429)
    return HttpResponseForbidden("Forbidden")
"""
_OUR_IMPORTS = f"""{_IMPORTS}
from ratekeeper import Limiter
from ratekeeper.http import Reply, Route, by_address, by_header, by_user, combine, first_of
from ratekeeper.integrations.django import limited

UNSAFE = ["POST", "PUT", "PATCH", "DELETE"]
RATEKEEPER = {{}}
"""
_LIMITED = """
{lines}
def a(request):
    return HttpResponse("a", status=int(request.GET.get("status", 200)))

{lines}
def b(request):
    return HttpResponse("b")

urlpatterns = [path("a", a), path("b", b)]
"""
_SETTINGS = """
{lines}
DECORATED
def a(request):
    return HttpResponse("a")

urlpatterns = [path("a", a)]
"""

PEER = Peer(
    packages=("django-ratelimit", "django", "redis"),
    extras="django,redis",
    client="django",
    frames={
        (THEIRS, "program"): f"{_THEIR_IMPORTS}{{lines}}",
        (THEIRS, "view"): f"{_THEIR_IMPORTS}{_LIMITED}",
        (THEIRS, "setting"): _THEIR_IMPORTS + _SETTINGS.replace("DECORATED", '@ratelimit(key="ip", rate="2/m")'),
        (OURS, "program"): f"{_OUR_IMPORTS}{{lines}}",
        (OURS, "view"): f"{_OUR_IMPORTS}{_LIMITED}",
        (OURS, "setting"): _OUR_IMPORTS + _SETTINGS.replace("DECORATED", '@limited("2/m")'),
    },
)
