"""Proxy in front of Dagster's webserver: it knows who asks, and lets each person do what their role allows.

    rules.py       tables: the lowest role of each mutation and path, the tags that a launch may set
    documents.py   a request of GraphQL as the webserver will execute it
    targets.py     the groups of the assets that a mutation touches
    persons.py     who asks, and the role of that person
    webserver.py   the way to the webserver: a checked mutation, the record of who launched
    dagster_proxy.py   routes, sign-in, pages and files of the webserver
    websockets.py  subscriptions
    *.html.j2      pages of the proxy itself

Belongs here: what a person may do in Dagster's pages, and the record of who launched a run. Does not: accounts, roles
and launches themselves (`resources.ledger`), the author of an evaluation (`ml_assets.model.steps.record`).
"""
