"""Page on which a person reviews a version: reads its report, compares it with the champion, approves or rejects it.

    desk.py          questions and decisions, without a page
    review_pages.py  routes, sign-in, sessions, headers
    *.html.j2        pages in the look of all reports

Belongs here: a web page over `release.reviews`. Does not: the rules of a review (`release.rules`), identities
(`resources.acting`), the content of a report (`ml_assets.model.evaluation`).
"""
