"""State on a Redis server: one script, called by hash, decides any number of requests in one round trip."""
