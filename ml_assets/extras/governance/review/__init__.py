"""Page on which a person reviews a version: reads its report, compares it with the champion, approves or rejects it.

    desk.py          questions and decisions, without a page
    sessions.py      who is signed in, and the tokens of forms
    review_pages.py  routes, sign-in, headers
    *.html.j2        pages in the look of all reports

Belongs here: a web page over `Releases.review`. Does not: the rules of a review (`ml_assets.model.release`), identities
(`resources.acting`), the content of a report (`ml_assets.model.evaluation`).
"""
