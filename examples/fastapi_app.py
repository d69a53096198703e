"""A FastAPI application: limits for all routes, for single routes and for a router, shown in its OpenAPI document.

$ pip install '.[fastapi]' uvicorn
$ uvicorn examples.fastapi_app:app
$ curl -i localhost:8000/search

With RATEKEEPER_STORE=redis://localhost, all processes share one count.
"""

import os
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI

from ratekeeper.http import Admission
from ratekeeper.integrations.fastapi import RateLimit, RateLimitMiddleware, document, limited

STORE = os.environ.get("RATEKEEPER_STORE", "memory://")

app = FastAPI()
app.add_middleware(RateLimitMiddleware, limit={"all": "100/minute"}, exempt=["/healthz"], store=STORE)  # by address
admin = APIRouter(prefix="/admin", dependencies=[Depends(RateLimit("5/minute", name="admin", store=STORE))])
tokens = RateLimit({"tokens": "1000/hour"}, cost=300, store=STORE)


@app.get("/search", dependencies=[Depends(RateLimit({"search": "10/minute"}, store=STORE))])
async def search(query: str = ""):
    return {"query": query, "results": []}


@app.get("/report")
@limited("fixed-window 2/day", store=STORE)
def report():
    return {"pages": 1}


@app.post("/complete")
async def complete(prompt: str, spent: Annotated[Admission | None, Depends(tokens)]):
    await tokens.correct(spent, len(prompt))  # the estimate was 300; now the real cost is known
    return {"tokens": len(prompt)}


@admin.get("/users")
async def users():
    return []


@admin.get("/groups")
async def groups():
    return []


@app.get("/healthz")
async def healthz():
    return "ok"


app.include_router(admin)
document(app)  # adds the 429 responses to /docs and /openapi.json
