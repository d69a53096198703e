"""The baseline applications of the suite `service`: `granian --interface asgi bench.constant:app`."""


async def app(scope, receive, send):
    """Do the least that an ASGI application can do."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": (await receive())["type"] + ".complete"})
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"allowed":true}'})


async def reading(scope, receive, send):
    """Read the body first."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
    await app(scope, receive, send)
