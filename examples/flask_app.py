"""A Flask application: limits for all views, for single views, and per customer.

$ pip install '.[flask]' gunicorn
$ gunicorn --threads 8 examples.flask_app:app
$ curl -i localhost:8000/search

With RATEKEEPER_STORE=redis://localhost, all processes share one count.
"""

import os

from flask import Blueprint, Flask, jsonify, request

from ratekeeper.http import by_address, first_of
from ratekeeper.integrations.flask import RateLimiter

CUSTOMERS = {"example-key": "ada"}  # by API key; in production, store hashed keys in a database


def customer(request):
    """Return whose API key it is; None for an unknown key, so that made-up keys give no new budget."""
    name = CUSTOMERS.get(",".join(request.header("x-api-key")))
    return name and f"customer:{name}"


limiter = RateLimiter(default="100/minute", application="1000/hour", key=first_of(customer, by_address()))
api = Blueprint("api", __name__)


@api.get("/search")
def search():
    return jsonify(results=[])


@api.post("/login")
@limiter.limit("5/minute; 20/hour", key=by_address())
def login():
    return jsonify(welcome=request.form.get("name", "stranger"))


@api.get("/export")
@limiter.limit({"rows": "fixed-window 1000/day"}, cost=100)
def export():
    return jsonify(rows=[])


@api.get("/healthz")
@limiter.exempt
def healthz():
    return "ok"


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["RATELIMIT_STORAGE_URI"] = os.environ.get("RATEKEEPER_STORE", "memory://")
    limiter.init_app(app)
    app.register_blueprint(api)

    @app.errorhandler(429)
    def too_many(error):
        return jsonify(error="too many requests", try_again_in=error.decision.retry_after), 429

    return app


app = create_app()
