"""Web application of the reviewer's page: routes, sign-in, and the protection of its forms.

Whoever opens the page acts as the person who signed in, never as the person who started the server, unless the ledger
has no accounts. A decision needs the session's cookie, which other sites cannot send, and the token of its form. A
session lives in the memory of this process: its end signs everybody out.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from ml_assets.extras.governance.counted_requests import CountedRequests
from ml_assets.extras.governance.review.desk import NotOnThisDesk, ReviewDesk, ReviewedVersion
from ml_assets.extras.governance.sessions import PageRefused, Session, Sessions, read_form
from ml_assets.foundation.links import REPORTS
from ml_assets.foundation.reports.page import rendered
from ml_assets.model.release.registry import VersionMissing
from ml_assets.model.release.releases import NotReviewable
from ml_assets.model.steps.record import ReportUnreadable
from ml_assets.pages.served import HEADERS as HEADERS_OF_REPORTS
from resources.acting import proved_person
from resources.artifacts import ArtifactMissing
from resources.ledger import IdentityRefused, LedgerError, Person, author_in_words
from resources.web.request_counts import RequestCounts
from resources.words import has_remedy

COOKIE = "ml_assets_review"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",  # a form's Origin would be null without a referrer
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_OWN_PATH = re.compile(rf"/(models|{REPORTS})/[^\\]*")
Handler = Callable[[Request], Awaitable[Response]]


class ReviewPages:
    def __init__(self, desk: ReviewDesk, address: str) -> None:
        """`address` is that of the pages in a browser: only it may send forms."""
        self._desk = desk
        self._origin = "{0.scheme}://{0.netloc}".format(urlsplit(address))
        self._sessions = Sessions()

    def routes(self) -> list[Route]:
        return [
            Route("/", self._page(self._waiting)),
            Route("/sign-in", self._explained(self._sign_in), methods=["GET", "POST"]),
            Route("/sign-out", self._explained(self._sign_out), methods=["POST"]),
            Route(f"/{REPORTS}/{{path:path}}", self._page(self._report)),
            Route("/models/{model}/{number:int}", self._page(self._version)),
            Route("/models/{model}/{number:int}/difference", self._page(self._difference)),
            Route("/models/{model}/{number:int}/review", self._explained(self._review), methods=["POST"]),
        ]

    # --- sign-in ---

    def _session(self, request: Request) -> Session | None:
        """Return the session of a request. It ends with its account, and if nobody checked its name, with the first
        account of the ledger."""
        secret = request.cookies.get(COOKIE, "")
        found = self._sessions.of(secret)
        if found is None:
            return None
        try:
            self._desk.platform.ledger.accounts.require_identity(found.person)
        except LedgerError:
            self._sessions.end(secret)
            return None
        return found

    async def _sign_in(self, request: Request) -> Response:
        accounts = self._desk.platform.ledger.accounts
        if not await run_in_threadpool(accounts.all):
            person = Person.unchecked(self._desk.platform.settings.author)
            return self._begin(person, request.query_params.get("to", ""))
        if request.method == "GET":
            return _html("sign_in.html.j2", 200, wrong="", to=_own_path(request.query_params.get("to", "")))
        self._require_own_origin(request)
        form = await read_form(request)
        try:
            person = await run_in_threadpool(proved_person, form.get("proof", ""), accounts)
        except IdentityRefused as refused:
            return _html("sign_in.html.j2", 403, wrong=str(refused), to=_own_path(form.get("to", "")))
        return self._begin(person, form.get("to", ""))

    def _begin(self, person: Person, to: str) -> Response:
        secret, _ = self._sessions.begin(person)
        answer = RedirectResponse(_own_path(to), 303, HEADERS)
        answer.set_cookie(
            # Lax: a link on another page leads to a review, but no form of another site has the cookie.
            COOKIE,
            secret,
            httponly=True,
            samesite="lax",
            secure=self._origin.startswith("https"),
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        await self._signed_form(request)
        self._sessions.end(request.cookies.get(COOKIE, ""))
        return RedirectResponse("/sign-in", 303, HEADERS)

    # --- pages ---

    def _waiting(self, session: Session, request: Request) -> Response:
        desk = self._desk
        return _html(
            "waiting.html.j2",
            200,
            **_frame(session),
            waiting=desk.waiting(),
            reviews=(reviews := desk.newest_reviews()),
            void=desk.void(reviews),
            models=desk.asks_for_approvals(),
        )

    def _version(self, session: Session, request: Request) -> Response:
        facts = self._desk.facts(*_asked(request))
        return _html("version.html.j2", 200, **_frame(session), **self._shown(facts, session.person))

    def _shown(self, facts: ReviewedVersion, person: Person) -> dict[str, Any]:
        approves = facts.decided is not None and facts.decided.approves
        unchecked = self._desk.why_unchecked(facts)
        is_open = facts.evaluation.status == "blessed" and (facts.decided is None or approves)
        return {
            "facts": facts,
            "objection": self._desk.objection_to(person, facts),
            "may_approve": is_open and facts.decided is None and not unchecked,
            "why_unchecked": unchecked,
            "void": self._desk.void(facts.reviews),
            "may_reject": facts.decided is None or approves,
            "here": _address_of(facts.version.model, facts.version.number),
            "report": f"/{quote(facts.report)}",
        }

    def _report(self, session: Session, request: Request) -> Response:
        """Answer with a file of a report. It is checked first: what the store holds may have been changed."""
        try:
            content, media_type = self._desk.report_file(request.path_params["path"])
        except (ReportUnreadable, ArtifactMissing) as error:
            raise NotOnThisDesk(f"this report is not shown: {error}") from error
        return Response(content, 200, HEADERS_OF_REPORTS, media_type)

    def _difference(self, session: Session, request: Request) -> Response:
        return HTMLResponse(self._desk.difference(*_asked(request)).to_html(), 200, HEADERS)

    # --- decision ---

    async def _review(self, request: Request) -> Response:
        session, form = await self._signed_form(request)
        model, number = _asked(request)
        session.told = await run_in_threadpool(self._decide, session.person, model, number, form)
        return RedirectResponse(_address_of(model, number), 303, HEADERS)

    def _decide(self, person: Person, model: str, number: int, form: dict[str, str]) -> tuple[str, str]:
        """Return the tone and the text of the result of a form."""
        if form.get("decision") not in ("approve", "reject"):
            raise PageRefused(400, "a form decides `approve` or `reject`")
        approves, reason = form["decision"] == "approve", form.get("reason", "")
        try:
            decided = self._desk.review(
                model, number, person=person, approves=approves, reason=reason, read=form.get("read", "")
            )
        except (NotReviewable, LedgerError) as refused:
            return "rejected", f"Nothing was recorded. {refused}"
        verb = "approved" if approves else "rejected"
        by = f"{author_in_words(decided)} at {decided.at:%Y-%m-%d %H:%M:%S} UTC: {decided.reason}"
        if (decided.author, decided.reason) != (person.name, reason):
            return "undecided", f"Nothing was recorded: the version was {verb} before, by {by}"
        return "blessed", f"The version is {verb} by {by}"

    async def _signed_form(self, request: Request) -> tuple[Session, dict[str, str]]:
        """Return session and form of a POST. Refuse it unless a page of this session sent it."""
        self._require_own_origin(request)
        session = await run_in_threadpool(self._session, request)
        if session is None:
            raise PageRefused(403, "you are not signed in any more: sign in, and decide again")
        form = await read_form(request)
        if not session.fits(form.get("form_token", "")):
            raise PageRefused(403, "the form belongs to another session: open the page again")
        return session, form

    def _require_own_origin(self, request: Request) -> None:
        if request.headers.get("origin", self._origin) != self._origin:
            raise PageRefused(403, "a page of another site sent this form")

    # --- around a handler ---

    def _page(self, show: Callable[[Session, Request], Response]) -> Handler:
        async def handler(request: Request) -> Response:
            session = await run_in_threadpool(self._session, request)
            if session is None:
                return _to_sign_in(request)
            return await run_in_threadpool(show, session, request)

        return self._explained(handler)

    def _explained(self, handler: Handler) -> Handler:
        """Wrap a handler: a known fault becomes a page with its sentence."""

        async def explained(request: Request) -> Response:
            try:
                return await handler(request)
            except PageRefused as refused:
                return _html("told.html.j2", refused.status, text=str(refused))
            except (NotOnThisDesk, VersionMissing) as missing:
                return _html("told.html.j2", 404, text=str(missing))
            except Exception as error:
                if not has_remedy(error):
                    raise
                return _html("told.html.j2", 502, text=str(error))  # such as of a server that is away

        return explained


def review_app(desk: ReviewDesk, address: str) -> Starlette:
    """Return the application. Requests to another host than that of `address` get nothing but the counts."""
    host, routes = urlsplit(address).hostname or "", ReviewPages(desk, address).routes()
    accounts = desk.platform.ledger.accounts
    counts = RequestCounts(
        requests="ml_assets_review_requests_total", seconds="ml_assets_review_request_seconds"
    )
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(CountedRequests, counts, "/metrics", routes, accounts),
            Middleware(TrustedHostMiddleware, allowed_hosts=[host], www_redirect=False),
        ],
    )


def _to_sign_in(request: Request) -> Response:
    """Lead to the sign-in, and from there back to the page that was asked for."""
    return RedirectResponse(f"/sign-in?to={quote(request.url.path, safe='')}", 303, HEADERS)


def _own_path(to: str) -> str:
    """Return `to` if it is a path of this application, otherwise that of the first page."""
    return quote(to) if _OWN_PATH.fullmatch(to) else "/"


def _asked(request: Request) -> tuple[str, int]:
    return request.path_params["model"], request.path_params["number"]


def _address_of(model: str, number: int) -> str:
    return f"/models/{quote(model, safe='')}/{number}"


def _frame(session: Session) -> dict[str, Any]:
    return {"person": session.person, "form_token": session.form_token, "told": session.take_told()}


def _html(template: str, status: int, **facts: Any) -> HTMLResponse:
    filters = {
        "by": author_in_words,
        "page_of": lambda version: _address_of(version.model, int(version.number)),
    }
    return HTMLResponse(
        rendered("ml_assets.extras.governance.review", template, filters, **facts), status, HEADERS
    )
