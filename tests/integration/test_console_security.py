"""The console lets nobody in who is not known, shows each viewer its own share, and does what its own pages ask for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foqs.console.console_settings import ConsoleSettings, KnownUser, read_users
from foqs.console.front_guard import BODY_BYTES_MAX
from foqs.console.sessions import SESSION_MS_MAX
from foqs.model.errors import InvalidArgumentError
from foqs.testing import MemoryQueue
from tests.support.console_world import BASE, PORT, SAME_SITE, ConsoleWorld

PRINCIPALS = {
    "poller": {"*": ["viewer", "monitor"]},
    "viewer-of-shop": {"shop": "viewer"},
    "reader-of-shop": {"shop": "reader"},
    "owner-of-shop": {"shop": "owner"},
    "watcher": {"*": "monitor"},
    "boss": {"*": ["owner", "operator", "admin"]},
}
PROXY = {"trust_header": "X-Forwarded-User", "trusted_proxies": ["10.1.0.0/16"]}
PAGES = ("/", "/ns/shop/topics", "/ns/shop/topic/mail", "/ns/shop/consumers", "/ns/shop/jobs", "/cluster", "/audit")


@pytest.fixture
def queue() -> Iterator[MemoryQueue]:
    with MemoryQueue(["shop", "secret"], principals=PRINCIPALS) as queue:
        queue.client().enqueue("shop", "mail", b"the payload of shop")
        queue.client().enqueue("secret", "plans", b"the payload of secret")
        yield queue


@pytest.fixture
def world(queue: MemoryQueue) -> Iterator[ConsoleWorld]:
    with ConsoleWorld(queue, own="poller", signs_in=False, allows_actions=True) as world:
        yield world


def token_of(text: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', text)
    assert found, text
    return found[1]


# ---- who is let in ----


def test_nobody_sees_a_page_without_a_session(world: ConsoleWorld) -> None:
    for path in PAGES:
        answer = world.http.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/sign-in?to=%2F"), path
        assert world.http.get(path, headers={"hx-request": "true"}).status_code == 401, path
    assert world.http.get("/ns/shop/topics.json").status_code == 401
    assert world.post("/act", {"token": "x"}).status_code == 401
    for cookie in ("x", "", "a.b.c", "\x00", "x" * 5_000):
        answer = world.http.get("/", headers={"cookie": f"foqs_console_{PORT}={cookie}"})
        assert answer.status_code == 303


def test_the_url_of_the_start_is_good_for_one_browser(world: ConsoleWorld) -> None:
    token = world.console.entrance.sessions.entry_token()
    assert world.http.get("/enter?token=wrong").status_code == 403
    answer = world.http.get(f"/enter?token={token}")
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert all(part in cookie for part in (f"foqs_console_{PORT}=", "HttpOnly", "SameSite=strict", "Path=/"))
    world.http.cookies.clear()
    assert world.http.get(f"/enter?token={token}").status_code == 403


def test_a_session_ends_by_itself_and_by_its_viewer(world: ConsoleWorld) -> None:
    world.sign_in_by_url()
    assert world.http.get("/").status_code == 200
    world.now_ms += SESSION_MS_MAX
    assert world.http.get("/").status_code == 303
    world.sign_in_by_url()
    kept = dict(world.http.cookies)
    assert world.post("/sign-out", {}).status_code == 303
    world.http.cookies.update(kept)
    assert world.http.get("/").status_code == 303, "the cookie that was kept is of no use"


def test_a_token_of_the_port_signs_in_and_a_wrong_one_does_not(world: ConsoleWorld) -> None:
    for wrong in ("", "nonsense", "token of nobody"):
        answer = world.post("/sign-in", {"token": wrong, "to": "/"})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert world.sign_in_by_token("viewer-of-shop").headers["location"] == "/"
    assert "viewer-of-shop" in world.page("/")


def test_a_principal_that_is_disabled_is_out_within_two_seconds(queue: MemoryQueue, world: ConsoleWorld) -> None:
    world.sign_in_by_token("viewer-of-shop")
    assert "mail" in world.page("/ns/shop/topics")
    queue.admin().update_principal("viewer-of-shop", enabled=False)
    queue.clock.advance(2_000)
    world.now_ms += 2_000
    answer = world.http.get("/ns/shop/topics")
    assert answer.status_code == 403
    assert "mail" not in answer.text


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\r\nx"]
)
def test_a_sign_in_leads_to_pages_of_the_console_alone(world: ConsoleWorld, to: str) -> None:
    answer = world.post("/sign-in", {"token": "token of viewer-of-shop", "to": to})
    assert answer.headers["location"] == "/"


# ---- what each viewer sees ----


def test_a_viewer_sees_its_own_namespaces_and_nothing_of_what_the_poller_sees(world: ConsoleWorld) -> None:
    world.sign_in_by_token("viewer-of-shop")
    for path in PAGES:
        text = world.http.get(path).text
        assert "secret" not in text, path
        assert "plans" not in text, path
    world.poll()
    assert "mail" in world.http.get("/ns/shop/topics").text
    unknown, hidden = world.http.get("/ns/nowhere/topics"), world.http.get("/ns/secret/topics")
    assert (unknown.status_code, hidden.status_code) == (404, 404)
    assert unknown.text.replace("nowhere", "N") == hidden.text.replace("secret", "N")
    assert world.http.get("/ns/secret/topics.json").status_code == 404
    assert world.http.get("/find?ns=secret&q=plans").headers["location"] == "/"
    document = world.http.get("/overview.json").json()
    assert [row["name"] for row in document["namespaces"]] == ["shop"]


def test_hosts_and_the_audit_are_for_those_who_may_see_them(world: ConsoleWorld) -> None:
    world.sign_in_by_token("viewer-of-shop")
    text = world.page("/")
    assert 'href="/cluster"' not in text
    assert 'href="/audit"' not in text
    for path in ("/cluster", "/audit", "/cluster.json", "/audit.json"):
        answer = world.http.get(path)
        assert answer.status_code == 403, path
        assert "shard_0" not in answer.text, path
    world.sign_in_by_token("watcher")
    assert "shard_0" in world.page("/cluster")
    world.sign_in_by_token("boss")
    assert "createNamespace" in world.page("/audit")


def test_payloads_are_for_readers(queue: MemoryQueue, world: ConsoleWorld) -> None:
    item = next(iter(queue.admin().iterate_items("shop")))
    world.sign_in_by_token("viewer-of-shop")
    assert "the payload" not in world.page("/ns/shop/topic/mail")
    assert "the payload" not in world.page(f"/ns/shop/item/{item.id}", 403)
    world.sign_in_by_token("reader-of-shop")
    assert "the payload of shop" in world.page("/ns/shop/topic/mail")
    assert "the payload of shop" in world.page(f"/ns/shop/item/{item.id}")
    with ConsoleWorld(queue, own="poller", signs_in=False, hides_payloads=True) as hiding:
        hiding.sign_in_by_token("boss")
        for path in ("/ns/shop/topic/mail", f"/ns/shop/item/{item.id}"):
            assert "the payload of shop" not in hiding.page(path)
            assert "the payload of shop" not in hiding.page(path.replace("/mail", "/mail.json"))
        assert "the payload" not in hiding.http.get(f"/ns/shop/item/{item.id}.json").text


def test_actions_are_for_those_who_may_do_them(queue: MemoryQueue, world: ConsoleWorld) -> None:
    for name in ("viewer-of-shop", "reader-of-shop"):
        world.sign_in_by_token(name)
        assert "data-dialog" not in world.page("/ns/shop/topic/mail")
        assert "you need the role owner in shop" in world.page("/ns/shop/act/pause?topic=mail", 403)
    world.sign_in_by_token("owner-of-shop")
    assert "data-dialog" in world.page("/ns/shop/topic/mail")
    assert world.page("/act/shard-drain?shard=0", 403)
    assert world.page("/ns/secret/act/pause?topic=plans", 404)
    text = world.page("/ns/shop/act/pause?topic=mail")
    answer = world.post("/act", {"token": token_of(text), "ns": "shop", "what": "--dequeue", "reason": "x"})
    assert answer.status_code == 200
    queue.clock.advance(2_000)
    records = [one for one in queue.admin().list_audit().records if one.verb == "setTopicPolicy"]
    assert [one.principal for one in records] == ["owner-of-shop"], "hosts check and record the person"


# ---- requests that others make ----


def test_a_host_name_that_is_not_its_own_is_refused(world: ConsoleWorld) -> None:
    world.sign_in_by_url()
    own = f"127.0.0.1:{PORT}"
    for host in ("evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:80", f"{own}.evil.example", ""):
        assert world.http.get("/", headers={"host": host}).status_code == 421, host
    for host in (f"localhost:{PORT}", f"[::1]:{PORT}", f"LOCALHOST:{PORT}"):
        assert world.http.get("/", headers={"host": host}).status_code == 200, host


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"https://127.0.0.1:{PORT}"},
        {"origin": BASE, "sec-fetch-site": "cross-site"},
        {"origin": BASE, "sec-fetch-site": "same-site"},
    ],
)
def test_a_post_of_another_site_does_nothing(queue: MemoryQueue, world: ConsoleWorld, headers: dict[str, str]) -> None:
    world.sign_in_by_token("owner-of-shop")
    token = token_of(world.page("/ns/shop/act/pause?topic=mail"))
    data = {"token": token, "ns": "shop", "what": "--dequeue", "reason": ""}
    assert world.http.post("/act", data=data, headers=headers).status_code == 403
    assert not queue.admin().get_topic_policy("shop", "mail").dequeue_paused
    assert world.post("/act", data).status_code == 200, "its token was not used up"


def test_a_token_of_one_session_is_of_no_use_in_another(queue: MemoryQueue, world: ConsoleWorld) -> None:
    world.sign_in_by_token("owner-of-shop")
    token = token_of(world.page("/ns/shop/act/pause?topic=mail"))
    world.sign_in_by_token("boss")
    assert world.post("/act", {"token": token, "ns": "shop", "what": "--dequeue", "reason": ""}).status_code == 400
    assert not queue.admin().get_topic_policy("shop", "mail").dequeue_paused


def test_a_token_is_good_for_fifteen_minutes(queue: MemoryQueue, world: ConsoleWorld) -> None:
    world.sign_in_by_token("owner-of-shop")
    token = token_of(world.page("/ns/shop/act/pause?topic=mail"))
    queue.clock.advance(15 * 60_000)
    assert world.post("/act", {"token": token, "ns": "shop", "what": "--dequeue", "reason": ""}).status_code == 400


def test_other_methods_and_long_bodies_are_refused(world: ConsoleWorld) -> None:
    world.sign_in_by_token("owner-of-shop")
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert world.http.request(method, "/act", headers=SAME_SITE).status_code == 405
    assert world.http.get("/act").status_code == 405
    assert world.post("/act", {"token": "x" * (BODY_BYTES_MAX + 1)}).status_code == 413
    chunks: Any = iter([b"x"] * 3)
    assert world.http.post("/act", content=chunks, headers=SAME_SITE).status_code == 413, "its length is not said"


def test_every_answer_forbids_foreign_content(world: ConsoleWorld) -> None:
    world.sign_in_by_token("boss")
    answers = [world.http.get(path) for path in (*PAGES, "/nothing", "/static/console.js", "/static/nothing.js")]
    answers += [world.http.get("/", headers={"host": "evil.example"}), world.http.post("/act")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] != ""
    for path in PAGES:
        text = world.http.get(path).text
        assert not re.search(r"\sstyle=|\son[a-z]+=|javascript:|<script(?! src=)", text), path
        assert not re.search(r'(src|href|action)="(?!/|#)', text), path


def test_static_files_do_not_lead_out_of_their_folder(world: ConsoleWorld) -> None:
    for path in ("/static/../console_app.py", "/static/%2e%2e/console_app.py", "/static/..%2fconsole_app.py"):
        assert world.http.get(path).status_code in (404, 405), path


def test_an_answer_that_has_not_changed_is_not_sent_again(world: ConsoleWorld) -> None:
    world.sign_in_by_token("boss")
    world.poll()
    first = world.http.get("/ns/shop/jobs")
    again = world.http.get("/ns/shop/jobs", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


# ---- proxies ----


def users(**principals: str) -> dict[str, KnownUser]:
    return {name: KnownUser(principal, f"token of {principal}") for name, principal in principals.items()}


def test_a_user_whom_a_trusted_proxy_names_is_a_principal(queue: MemoryQueue) -> None:
    settings = {**PROXY, "users": users(ana="owner-of-shop", ben="watcher")}
    with ConsoleWorld(queue, own="poller", signs_in=False, client=("10.1.2.3", 1), **settings) as world:
        world.poll()
        assert "owner-of-shop" in world.page("/", **{"x-forwarded-user": "ana"})
        assert "watcher" in world.page("/", **{"x-forwarded-user": "ben"})
        for named in ("eve", "", "ana, ben"):
            assert world.http.get("/", headers={"x-forwarded-user": named}).status_code in (303, 403), named
        both = [("x-forwarded-user", "ana"), ("x-forwarded-user", "ben")]
        assert world.http.get("/", headers=both).status_code == 403
        assert world.http.get("/").status_code == 303, "no header and no cookie"


def test_the_header_of_others_than_the_proxy_says_nothing(queue: MemoryQueue) -> None:
    settings = {**PROXY, "users": users(ana="boss")}
    for address in ("10.2.0.1", "127.0.0.1", "::1"):
        with ConsoleWorld(queue, own="poller", signs_in=False, client=(address, 1), **settings) as world:
            assert world.http.get("/", headers={"x-forwarded-user": "ana"}).status_code == 303, address


def test_a_token_of_another_principal_than_the_configuration_names_is_refused(queue: MemoryQueue) -> None:
    mixed = {"ana": KnownUser("viewer-of-shop", "token of boss")}
    with ConsoleWorld(queue, own="poller", signs_in=False, client=("10.1.2.3", 1), **PROXY, users=mixed) as world:
        answer = world.http.get("/", headers={"x-forwarded-user": "ana"})
        assert answer.status_code == 403
        assert "the configuration names viewer-of-shop" in answer.text


# ---- settings ----


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"listen": "0.0.0.0:7680"}, "nobody would have to sign in"),
        ({"listen": "[::]:7680"}, "nobody would have to sign in"),
        ({"listen": "192.168.1.5:7680", "allows_actions": True}, "nobody would have to sign in"),
        ({"listen": "0.0.0.0:7680", "signs_in_by_token": True}, "tokens would be sent there in clear"),
        ({"listen": "0.0.0.0:7680", "signs_in_by_token": True, "is_behind_tls": True}, "no URL leads there"),
        ({"trust_header": "X-User"}, "belong together"),
        ({**PROXY, "users": users(a="boss"), "trusted_proxies": ["10.0.0.1/8"]}, "trusted_proxy"),
        ({**PROXY, "users": users(a="boss"), "trust_header": "X User"}, "no name of a header"),
        ({"host_names": ["a b"]}, "host name"),
        ({"listen": "nowhere"}, "give HOST:PORT"),
    ],
)
def test_settings_that_would_let_strangers_in_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        ConsoleSettings(**given)


def test_a_console_behind_tls_has_cookies_of_tls_and_no_url(queue: MemoryQueue) -> None:
    settings = {
        "listen": "0.0.0.0:7680", "signs_in_by_token": True, "is_behind_tls": True, "host_names": ["console.example"]
    }  # fmt: skip
    with ConsoleWorld(queue, own="poller", signs_in=False, **settings) as world:
        token = world.console.entrance.sessions.entry_token()
        headers = {"host": "console.example", "origin": "https://console.example"}
        assert world.http.get(f"/enter?token={token}", headers=headers).status_code == 403
        data = {"token": "token of boss", "to": "/"}
        answer = world.http.post("/sign-in", data=data, headers=headers)
        assert answer.status_code == 303
        assert answer.headers["set-cookie"].startswith("__Host-foqs_console=")
        assert "Secure" in answer.headers["set-cookie"]


def test_the_file_of_users_is_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text('[users."ana@example.com"]\nprincipal = "ana"\ntoken_file = "ana.token"\n')
    assert read_users(file) == {"ana@example.com": KnownUser("ana", str(tmp_path / "ana.token"))}
    for text in (
        "", "[users]\n", "users = 3", '[users.a]\nprincipal = "ana"\n',
        '[users.a]\nprincipal = 1\ntoken_file = "x"\n',
        '[users.a]\nprincipal = "ANA"\ntoken_file = "x"\n',
        '[users.a]\nprincipal = "a"\ntoken_file = "x"\nrole = "x"\n',
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(InvalidArgumentError):
            read_users(file)
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        read_users(tmp_path / "none.toml")
