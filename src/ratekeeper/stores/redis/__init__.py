"""State on Redis servers: one script decides any number of requests in one round trip.

A request goes down one stack of layers, for threads and for event loops alike, and its outcome comes up again:

    RedisStore, AsyncRedisStore            `thread_store`, `asyncio_store`; what they share is in `base_store`
      remembered denials                   `denials`: answer again what was just denied
      nodes                                `thread_nodes`, `asyncio_nodes`: only for a cluster; `split` says how
      batches                              `thread_batches`, `asyncio_batches`; what they share is in `batching`
      connections                          `thread_connections`, `asyncio_connections`: one exchange with one server
    servers                                `servers`: what connections share; `routing`, `topology`: where a key is

To read it: `thread_store`, then down the stack of threads; the one of event loops has the same shape. Then `wire` for
what is sent and read, `script` with `main.lua` for what the server does with it, and `redis_errors` for what can go
wrong. `urls` and `redis_client` say how to connect; `semaphore` lets a few threads in at a time.

The words: a *request* is a sequence of demands that are decided together. A *batch* is requests that are sent together.
An *exchange* sends commands to one server, once, and reads the replies. A cluster spreads keys over *slots*, and a
*node* has some of these; a request whose keys are in several slots is *split*. A flow (see `ratekeeper.flows`) is logic
that threads and tasks share.
"""
