"""docs/moving.md, tried out: what users of other libraries write, beside what they write here.

The page is the one place for each pattern. A comment, which its readers do not see, has the steps that both sides are
asked, and what ours answers: `<!-- 3 GET /a: 200, 200, 429 -->`. To add a pattern, add a row to a table of the page, or
such a comment with a pair of programs below it.

- `page`: reads the patterns
- `peer`: what is needed to try out the patterns of a peer
- `slowapi`, `flask_limiter`, `django_ratelimit`, `limits`, `throttled_py`: that, with the programs that lines stand in
- `traffic`: sends the steps to a program
- `trial`: tries out one side of a peer's patterns
- `both`: tries out both, and judges whether they agree
"""
