"""The HTTP service: the library's operations over HTTP. Needs `ratekeeper[server]`.

Reading order:

- `web`: what a route needs, a small framework: `ServiceRequest`, `Response`, `Router`, and `Problem` for every error
- `shared`: `Service`, the state that routes share: one store, its limiters and its figures
- `figures`: what the service counts, decision by decision in `service_counter`: `slabs` are counts that workers share,
  `live` is the live chart, and `talkers` are the top talkers, by way of `heavy_hitters`
- `served_policies`: the policies in force; each protocol finds a policy there, and decides by its limiter
- `bodies`: the JSON bodies, read into a limiter or a policy, a key or attributes, and a cost
- `batches`: many hits in one request; `api`: the routes under `/v1`, described by `openapi`, whose operations are in
  `openapi_operations`
- `forward_auth`: decisions for proxies that ask about the requests of their clients
- `operating`: `/metrics` and `/v1/top`, with `key_hashes` instead of keys, described by `operating_paths`
- `log_lines`: the log, as text or JSON; `access_log` and `denial_log` are what can be turned on
- `administration`: what operators change while the service runs; `policy_api` has their routes, described by
  `openapi_policies`. `policy_sources` and `policy_store` are where the `editions` of the policies are from,
  `override_store` keeps overrides, `audit_trail` who changed what; `following` looks for what others have changed
- `versioned_values`, `store_time`: what processes share on a store
- `guards`: which requests are rejected before they reach a route; `callers`: who may hit and peek
- `app`: `create_app`, which puts these and the playground together
- `asgi_server`, `rsgi`: the application as servers call it
- `connections`: closes those whose clients keep the service waiting
- `listening`, `certificates`, `granian_server`, `running`: one process that serves until it is told to stop
- `supervisor`: several such processes, each with its place, a `worker`
- `serve_options`, `serve`: the command `ratekeeper serve`

Words: a *problem* is an error response (RFC 9457); a *guard* rejects requests from other sites or without the token;
a decision is *degraded* when the store was unavailable and this process decided; an *edition* is the text of all
policies with its version.
"""

DEADLINE = 0.1  # default: seconds to wait for the store before this process decides
