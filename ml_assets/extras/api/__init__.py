"""REST API of the platform: what a program asks over HTTP, thin over `ml_assets.context`.

    callers.py    who asks: the account of a bearer token, its role, its rate
    problems.py   every refusal as a document of RFC 9457
    shapes.py     documents of requests and answers, and pages of lists
    reads.py      routes that change nothing
    launches.py   routes of runs: launch, state, stop
    following.py  a training while it runs: its metrics as events
    stages.py     route of a version's stage
    app.py        the application: its frame and its OpenAPI document

Belongs here: HTTP. Does not: rules of launches and releases (`ml_assets.context`), accounts and roles
(`resources.ledger`), the way to Dagster (`ml_assets.extras.governance.proxy.webserver`).
"""
