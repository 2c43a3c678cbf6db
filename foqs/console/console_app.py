"""The application of the console: its routes, and the way of a request from the session to the page."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from foqs.console.action_steps import action_page, progress_page, taken_up
from foqs.console.asked import Asked, ConsolePage, item_url, namespace_url, topic_url
from foqs.console.audit_page import audit_page
from foqs.console.cluster_page import cluster_page
from foqs.console.console_entrance import ConsoleEntrance
from foqs.console.console_settings import ConsoleSettings
from foqs.console.consumers_page import consumers_page
from foqs.console.front_guard import FrontGuard
from foqs.console.item_page import item_page
from foqs.console.jobs_page import job_page, jobs_page
from foqs.console.overview_page import overview_page
from foqs.console.poller import Poller
from foqs.console.reach import Reach
from foqs.console.rendering import STATIC_DIR, json_text, make_environment, rendered
from foqs.console.sessions import BrowserSession
from foqs.console.topic_page import topic_page
from foqs.console.topics_page import topics_page
from foqs.console.viewers import Rights
from foqs.model import ids
from foqs.model.errors import (
    FoqsError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnknownNamespaceError,
)

MakePage = Callable[[Asked], Awaitable[ConsolePage]]
_STATUS_BY_ERROR: Final = (
    (InvalidArgumentError, 400),
    (NotFoundError, 404),
    (UnknownNamespaceError, 404),
    (PermissionDeniedError, 403),
    (OverloadedError, 503),
)
_QUERY_CHARS_MAX: Final = 4_000
_FIELDS_MAX: Final = 20
_PAGES: Final[dict[str, MakePage]] = {
    "/ns/{namespace}/topics": topics_page,
    "/ns/{namespace}/topic/{name}": topic_page,
    "/ns/{namespace}/topic": topic_page,
    "/ns/{namespace}/item/{item_id}": item_page,
    "/ns/{namespace}/consumers": consumers_page,
    "/ns/{namespace}/jobs": jobs_page,
    "/ns/{namespace}/jobs/{job_id}": job_page,
    "/cluster": cluster_page,
    "/audit": audit_page,
}


class Console:
    """The parts of a console that serves: its poller, its sessions, its templates."""

    def __init__(
        self,
        settings: ConsoleSettings,
        reach: Reach,
        *,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        port: int,
    ) -> None:
        self.settings = settings
        self.poller = Poller(reach, now_ms)
        self.entrance = ConsoleEntrance(settings, reach, monotonic_ms, port)
        self._now_ms = now_ms
        self._port = port
        self._environment = make_environment()

    def app(self) -> ASGIApp:
        """Return the application, which starts and stops the poller."""
        routes: list[Any] = [Route(f"{path}.json", self._json(make)) for path, make in _PAGES.items()]
        routes.append(Route("/overview.json", self._json(overview_page)))
        routes += [Route(path, self._html(make)) for path, make in _PAGES.items()]
        routes += [
            Route("/", self._html(overview_page)),
            Route("/find", self._find),
            Route("/ns/{namespace}/act/{action}", self._step(action_page)),
            Route("/act/{action}", self._step(action_page)),
            Route("/ns/{namespace}/jobs/{job_id}/progress", self._step(progress_page)),
            Route("/act", self._act, methods=["POST"]),
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/enter", self._enter),
            Mount("/static", _Static(directory=STATIC_DIR)),
        ]
        inner = Starlette(routes=routes, lifespan=self._lifespan)
        scheme = "https" if self.settings.is_behind_tls else "http"
        return FrontGuard(inner, self.settings.allowed_hosts(self._port), scheme)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        await self.poller.start()
        try:
            yield
        finally:
            await self.poller.stop()
            await self.entrance.sessions.close()

    # ---- pages ----

    def _html(self, make: MakePage) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            is_part = request.headers.get("hx-request") == "true"
            found = await self._session(request, is_part=is_part)
            if isinstance(found, Response):
                return found
            session, rights = found
            page = await self._made(make, request, session, rights)
            values = {**self._frame(request, session, rights, page), **page.values}
            text = rendered(self._environment, page.template, values, is_part=is_part)
            return _with_etag(request, HTMLResponse(text, page.status, headers={"vary": "hx-request"}))

        return respond

    def _json(self, make: MakePage) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            found = await self._session(request, is_part=True)
            if isinstance(found, Response):
                return found
            page = await self._made(make, request, *found)
            document = page.document if page.status == 200 else {"error": page.values["error"]}
            return Response(json_text(document), page.status, media_type="application/json")

        return respond

    def _step(self, make: MakePage) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            is_part = request.headers.get("hx-request") == "true"
            found = await self._session(request, is_part=is_part)
            if isinstance(found, Response):
                return found
            page = await self._made(make, request, *found)
            return self._step_response(request, page, *found)

        return respond

    async def _act(self, request: Request) -> Response:
        """Take up an offer. Its token in the form is the only thing that says which one."""
        found = await self._session(request, is_part=True)
        if isinstance(found, Response):
            return found
        form = await request.form(max_files=0, max_fields=_FIELDS_MAX)
        inputs = {key: value for key, value in form.items() if isinstance(value, str)}
        page = await self._made(lambda asked: taken_up(asked, inputs), request, *found, namespace=inputs.get("ns", ""))
        return self._step_response(request, page, *found)

    def _step_response(self, request: Request, page: ConsolePage, session: BrowserSession, rights: Rights) -> Response:
        """Return a step of an action: for a dialog alone, or as a page of its own."""
        if page.template == "error.html":
            page = ConsolePage("act.html", "Not done", "", {"step": "failed", "heading": "Not done", "is_live": False,
                                                     "error": page.values["error"]}, status=page.status)  # fmt: skip
        is_part = request.headers.get("hx-request") == "true"
        values = {**self._frame(request, session, rights, page), **page.values}
        template = "act_step.html" if is_part else page.template
        headers = {"vary": "hx-request", "cache-control": "no-store"}
        return HTMLResponse(self._environment.get_template(template).render(values), page.status, headers=headers)

    async def _session(self, request: Request, *, is_part: bool) -> tuple[BrowserSession, Rights] | Response:
        """Return the session of a request with the rights of its viewer, or the answer for a browser without one."""
        try:
            session = await self.entrance.session_of(request)
            if session is not None:
                return session, await session.viewer.rights()
        except PermissionDeniedError as error:
            return self._refused(error.message, 403)
        except FoqsError as error:
            return self._refused(f"the hosts of foqs do not answer: {error.message}", 503)
        if is_part:
            return Response(status_code=401, headers={"hx-redirect": "/sign-in"})
        back = quote(_url_of(request), safe="")
        return RedirectResponse(f"/sign-in?to={back}", 303)

    async def _made(
        self, make: MakePage, request: Request, session: BrowserSession, rights: Rights, *, namespace: str = ""
    ) -> ConsolePage:
        """Make a page; an error of the hosts is a page, too."""
        asked = Asked(
            path=quote(request.scope["path"].removesuffix(".json"), safe="/"),
            query={
                key: value[:_QUERY_CHARS_MAX]
                for key, value in {**request.query_params, **request.path_params}.items()
                if key != "namespace"
            },
            session=session,
            rights=rights,
            poller=self.poller,
            now_ms=self._now_ms(),
            allows_actions=self.settings.allows_actions,
            hides_payloads=self.settings.hides_payloads,
            namespace=request.path_params.get("namespace", namespace),
        )
        try:
            return await make(asked)
        except FoqsError as error:
            status = next((status for kind, status in _STATUS_BY_ERROR if isinstance(error, kind)), 503)
            return ConsolePage("error.html", "Not shown", "", {"error": error.message}, status=status)

    def _frame(self, request: Request, session: BrowserSession, rights: Rights, page: ConsolePage) -> dict[str, Any]:
        """Return the values of the frame around each page."""
        seen = sorted(name for name in self.poller.namespaces if rights.observes(name))
        chosen = request.path_params.get("namespace") or request.query_params.get("ns", "")
        indexes = self.poller.indexes
        largest = max(seen, key=lambda name: len(indexes[name].rows) if name in indexes else 0, default="")
        namespace = chosen if chosen in seen else largest
        message, session.message = session.message, ""
        index = self.poller.indexes.get(namespace)
        return {
            "title": page.title, "section": page.section, "namespaces": seen, "namespace": namespace,
            "rights": rights, "now_ms": self._now_ms(), "allows_actions": self.settings.allows_actions,
            "poller": self.poller, "message": message, "how": session.how,
            "url": quote(request.scope["path"], safe="/"),
            "full_url": _url_of(request),
            "topics_count": len(index.rows) if index and namespace else 0,
        }  # fmt: skip

    async def _find(self, request: Request) -> Response:
        """Lead to the item or the topic of this name, or to the topics that have the text in their names."""
        found = await self._session(request, is_part=False)
        if isinstance(found, Response):
            return found
        text, namespace = request.query_params.get("q", "").strip(), request.query_params.get("ns", "")
        index = self.poller.indexes.get(namespace) if found[1].observes(namespace) else None
        if not text or index is None:
            return RedirectResponse("/", 303)
        if text in index.rows:
            return RedirectResponse(topic_url(namespace, text), 303)
        if ids.is_bare(text):
            return RedirectResponse(item_url(namespace, text), 303)
        return RedirectResponse(namespace_url(namespace, "topics", filter=text[:_QUERY_CHARS_MAX]), 303)

    # ---- signing in ----

    async def _enter(self, request: Request) -> Response:
        try:
            session = await self.entrance.enter_by_url(request.query_params.get("token", ""))
        except FoqsError as error:
            return self._refused(f"the hosts of foqs do not answer: {error.message}", 503)
        if session is None:
            return self._refused("this URL was used before, or is of an earlier start: see the console's output", 403)
        response = RedirectResponse("/", 303)
        self.entrance.remember(response, session)
        return response

    async def _sign_in(self, request: Request) -> Response:
        if request.method == "GET":
            return self._sign_in_page(request, "")
        form = await request.form(max_files=0, max_fields=10)
        token = form.get("token", "")
        try:
            session = await self.entrance.enter_by_token(token if isinstance(token, str) else "")
        except FoqsError as error:
            return self._sign_in_page(request, error.message, 403)
        response = RedirectResponse(_inside(str(form.get("to", "/"))), 303)
        self.entrance.remember(response, session)
        return response

    async def _sign_out(self, request: Request) -> Response:
        session = await self.entrance.session_of(request)
        if session is not None:
            await self.entrance.sessions.end(session)
        response = RedirectResponse("/sign-in", 303)
        self.entrance.forget(response)
        return response

    def _sign_in_page(self, request: Request, error: str, status: int = 200) -> Response:
        values = {"error": error, "to": _inside(request.query_params.get("to", "/")), "settings": self.settings}
        return HTMLResponse(self._environment.get_template("sign_in.html").render(values), status)

    def _refused(self, message: str, status: int) -> Response:
        text = self._environment.get_template("refused.html").render({"message": message})
        return HTMLResponse(text, status)


def _url_of(request: Request) -> str:
    """Return the path and the query of a request, encoded."""
    path = quote(request.scope["path"], safe="/")
    return f"{path}?{request.url.query}" if request.url.query else path


def _inside(target: str) -> str:
    """Return a path of this site, and / for any other target."""
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable() else "/"


def _with_etag(request: Request, response: Response) -> Response:
    """Return the response, or 304 if the browser has it."""
    tag = f'"{hashlib.blake2b(bytes(response.body), digest_size=16).hexdigest()}"'
    if response.status_code == 200 and request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag, "vary": "hx-request"})
    response.headers["etag"] = tag
    return response


class _Static(StaticFiles):
    """Serves the static files, which browsers keep: their URLs have versions."""

    def file_response(self, *arguments: Any, **extra: Any) -> Response:
        response = super().file_response(*arguments, **extra)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response
