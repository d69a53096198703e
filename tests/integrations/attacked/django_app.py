"""The attacked Django project: its settings and its views in one module."""

from django.http import HttpResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt
from django.views.static import serve
from rest_framework.response import Response
from rest_framework.views import APIView

from tests.integrations.attacked.limits import OPTIONS, STATIC, shown

SECRET_KEY = "for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = __name__
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "ratekeeper.integrations.django.RateLimitMiddleware"]
DATABASES = {}
REST_FRAMEWORK = {"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []}
RATEKEEPER = OPTIONS


def view(name):
    return lambda request, **_: HttpResponse(shown(name))


@csrf_exempt
def login(request):
    return HttpResponse(shown("login" if request.method == "POST" else "form"))


class Users(APIView):
    def get(self, request, id):  # noqa: A002 - the name in the path
        return Response(shown("user"))


urlpatterns = [
    re_path(r"(?i)^login$", login),
    path("users/<str:id>", Users.as_view()),
    re_path(r"(?i)^slack/*$", view("slack")),
    path("any/cheap", view("cheap")),
    path("any/<path:rest>", view("any")),
    path("mine", csrf_exempt(view("mine"))),
    path("named", view("named")),
    path("keyed", view("keyed")),
    path("other", view("other")),
    path("healthz", view("health")),
    path("open/<path:rest>", view("open")),
    path("static/<path:path>", serve, {"document_root": STATIC}),
]
