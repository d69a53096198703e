"""A Django project in one file: limits for the whole site, for single views (sync and async), and per customer.

$ pip install '.[django]' gunicorn uvicorn
$ python examples/django_app.py runserver           # or:
$ gunicorn --threads 8 examples.django_app:application
$ uvicorn examples.django_app:asgi_application
$ curl -i localhost:8000/search

With RATEKEEPER_STORE=redis://localhost, all processes share one count.
"""

import os
import sys

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, JsonResponse
from django.urls import path

from ratekeeper.http import Route, by_address, first_of
from ratekeeper.integrations.django import limited

CUSTOMERS = {"example-key": "ada"}  # by API key; in production, store hashed keys in a database


def customer(request):
    """Return whose API key it is; None for an unknown key, so that made-up keys give no new budget."""
    name = CUSTOMERS.get(",".join(request.header("x-api-key")))
    return name and f"customer:{name}"


settings.configure(
    SECRET_KEY=os.environ.get("SECRET_KEY", "only for this example"),
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[
        "django.middleware.common.CommonMiddleware",
        "ratekeeper.integrations.django.RateLimitMiddleware",
    ],
    RATEKEEPER={
        "limit": "100/minute",
        "key": first_of(customer, by_address()),
        "routes": [Route("/export/*", {"rows": "fixed-window 1000/day"}, cost=100)],
        "exempt": ["/healthz"],
        "store": os.environ.get("RATEKEEPER_STORE", "memory://"),
    },
)


def search(request):
    return JsonResponse({"results": []})


@limited("5/minute; 20/hour", key=by_address())
def login(request):
    return JsonResponse({"welcome": request.GET.get("name", "stranger")})


@limited("fixed-window 2/day", name="reports")
async def report(request):
    return JsonResponse({"pages": 1})


def export(request, table):
    return JsonResponse({"rows": [], "table": table})


def healthz(request):
    return HttpResponse("ok")


urlpatterns = [
    path("search", search),
    path("login", login),
    path("report", report),
    path("export/<table>", export),
    path("healthz", healthz),
]
application = get_wsgi_application()
asgi_application = get_asgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
