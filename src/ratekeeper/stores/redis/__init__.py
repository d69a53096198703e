"""State on Redis servers: one script decides any number of requests in one round trip.

A request goes down a stack of layers and its outcome comes up again; threads and event loops have a stack each:

    RedisStore, AsyncRedisStore            `thread_store`, `asyncio_store`; what they share is in `base_store`
      remembered denials                   `denials`: repeat a denial that still holds
      nodes                                `thread_nodes`, `asyncio_nodes`: only for a cluster; see also `split`
      batches                              `thread_batches`, `asyncio_batches`; what they share is in `batching`
      connections                          `thread_connections`, `asyncio_connections`: one exchange with one server
        set-ups and searches               `jobs`: beside decisions, in `thread_jobs`, `asyncio_jobs`
    servers                                `servers`: shared by all connections; `routing`, `topology`: where a key is

Reading order: `thread_store`, then down the stack for threads; the stack for event loops has the same shape. Then
`wire` for what is sent and read, `script` and `main.lua` for what the server does with it, and `redis_errors` for what
can go wrong. `urls`, `redis_client` and `tls` say how to connect; `semaphore` lets a few threads in at a time.

Words: a *request* is a sequence of demands that are decided together. A *batch* is a group of requests that are
sent together. An *exchange* sends commands to one server, once, and reads the replies. A cluster spreads keys over
*slots*, and each *node* has some of them; a request whose keys are in several slots is *split*. A flow (see
`ratekeeper.flows`) is logic that threads and tasks share.
"""
