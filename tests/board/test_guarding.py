"""Who may ask the board: every way in that a page of another site, or a neighbour in the network, could try."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.board.asking import TOKEN, asking, make_run

from trainbook.board.guarding import SECURITY_HEADERS, Access, split_host

OPEN = Access()
ACTING = Access(token=TOKEN)
CLOSED = Access(host="0.0.0.0", token=TOKEN, reading_needs_token=True)


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:8700",
        "localhost",
        "localhost:8701",
        "127.0.0.1.evil.com:8700",
        "",
        "localhost:8700:8700",
        "[::1",
    ],
)
def test_another_host_or_port_is_refused(tmp_path: Path, host: str):
    with asking(tmp_path) as client:
        for path in ("/", "/api/board", "/api/runs", "/static/app.js"):
            answer = client.get(path, headers={"Host": host})
            assert answer.status_code == 403 and "answers to localhost on port 8700" in answer.json()["error"]


@pytest.mark.parametrize("host", ["localhost:8700", "127.0.0.1:8700", "[::1]:8700", "LOCALHOST:8700"])
def test_each_name_of_this_machine_is_answered(tmp_path: Path, host: str):
    with asking(tmp_path) as client:
        assert client.get("/api/board", headers={"Host": host}).status_code == 200


def test_a_host_is_split_into_name_and_port():
    assert split_host("a.b:80") == ("a.b", 80)
    assert split_host("[::1]:8700") == ("::1", 8700)
    assert split_host("[::1]") == ("::1", 80)
    assert split_host("name") == ("name", 80)
    assert split_host("name:x") == ("name", None)


def test_where_all_addresses_are_listened_on_an_address_is_a_host_and_a_foreign_name_is_not(tmp_path: Path):
    with asking(tmp_path, access=CLOSED) as client:
        known = {"X-Trainbook-Token": TOKEN}
        assert client.get("/api/board", headers={"Host": "192.168.1.7:8700", **known}).status_code == 200
        assert client.get("/api/board", headers={"Host": "rebound.example:8700", **known}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.com", "null", "http://localhost:8701", "https://localhost.evil.com:8700"]
)
def test_a_page_of_another_origin_can_neither_change_nor_read(tmp_path: Path, origin: str):
    make_run(tmp_path)
    with asking(tmp_path, access=ACTING, allows_actions=True) as client:
        told = {"Origin": origin, "X-Trainbook-Token": TOKEN}
        assert client.post("/api/runs/0~run/tag", json={"add": ["x"]}, headers=told).status_code == 403
        assert client.post("/api/open?name=a.csv", content=b"step,loss\n1,2\n", headers=told).status_code == 403
        assert client.get("/api/runs", headers=told).status_code == 403
    assert not (tmp_path / "run" / "board.json").exists()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_browser_says_comes_from_another_site_is_refused(tmp_path: Path, site: str):
    with asking(tmp_path) as client:
        assert client.get("/api/runs", headers={"Sec-Fetch-Site": site}).status_code == 403
        assert client.get("/api/live", headers={"Sec-Fetch-Site": site}).status_code == 403
        opened = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
        assert client.get("/run/0~run", headers=opened).status_code == 200  # a link in a chat
        assert client.get("/api/runs", headers=opened).status_code == 403


def test_where_a_token_is_needed_nothing_is_read_without_it(tmp_path: Path):
    make_run(tmp_path)
    with asking(tmp_path, access=CLOSED) as client:
        for path in (
            "/api/board",
            "/api/runs",
            "/api/runs/0~run",
            "/api/runs/0~run/curves.csv",
            "/api/live",
            "/api/plan",
        ):
            answer = client.get(path)
            assert answer.status_code == 401 and answer.json()["token"] is True
            assert client.get(path, headers={"X-Trainbook-Token": TOKEN[:-1]}).status_code == 401
        assert client.get("/").status_code == 200  # which holds nothing of a run, and asks for the token
        assert client.get("/api/runs", headers={"X-Trainbook-Token": TOKEN}).status_code == 200


def test_the_cookie_of_a_login_is_enough_to_read_and_not_to_act(tmp_path: Path):
    make_run(tmp_path)
    with asking(tmp_path, access=CLOSED, allows_actions=True) as client:
        assert client.post("/api/login", json={"token": "wrong"}).status_code == 403
        answer = client.post("/api/login", json={"token": TOKEN})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
        assert client.get("/api/runs/0~run/curves.csv?metric=loss").status_code == 200
        assert client.post("/api/runs/0~run/tag", json={"add": ["x"]}).status_code == 401


def test_an_action_needs_the_token_and_a_board_that_allows_it(tmp_path: Path):
    make_run(tmp_path)
    with asking(tmp_path, access=ACTING) as client:
        answer = client.post("/api/runs/0~run/tag", json={}, headers={"X-Trainbook-Token": TOKEN})
        assert answer.status_code == 403 and "--allow-actions" in answer.json()["error"]
    with asking(tmp_path, access=ACTING, allows_actions=True) as client:
        assert client.get("/api/runs").status_code == 200  # reading is free on this machine
        for name in ("stop", "tag", "note", "archive", "delete", "try"):
            assert client.post(f"/api/runs/0~run/{name}", json={}).status_code == 401
        form = client.post("/api/runs/0~run/tag", data={"add": "x"}, headers={"X-Trainbook-Token": TOKEN})
        assert form.status_code == 415  # as a form of another site could send it


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/api/runs/0~..~..~etc~passwd",
        "/api/runs/..%2f..%2fetc%2fpasswd",
        "/api/runs/0~secret",
        "/api/runs/0~..~beside/curves",
        "/api/runs/0~linked",
        "/api/runs/%00",
        "/api/studies/0~..",
        "/api/explain/..%2f..%2fetc%2fpasswd",
        "/api/plan?recipe=/etc/passwd",
        "/api/plan?recipe=../secret.yaml",
    ],
)
def test_no_path_leads_out_of_the_folders(tmp_path: Path, path: str):
    make_run(tmp_path / "shown", losses=[1.0])
    make_run(tmp_path, "beside", losses=[424_242.0])
    (tmp_path / "shown" / "linked").symlink_to(tmp_path / "beside")
    with asking(tmp_path / "shown") as client:
        answer = client.get(path)
        assert answer.status_code in (400, 404) and "error" in answer.json()
        assert "root:" not in answer.text and "424242" not in answer.text


def test_a_run_with_a_link_that_leads_out_is_not_read_through_it(tmp_path: Path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1, "segment": 0, "split": "train", "loss": 424242.0}\n')
    run = make_run(tmp_path / "shown")
    run.metrics_file.unlink()
    run.metrics_file.symlink_to(secret)
    with asking(tmp_path / "shown") as client:
        assert "424242" not in client.get("/api/runs").text
        answer = client.get("/api/runs/0~run/curves?metric=loss")
        assert answer.status_code == 400 and "is a link" in answer.json()["error"]


def test_every_answer_forbids_foreign_scripts_and_frames(tmp_path: Path):
    with asking(tmp_path) as client:
        for path in ("/", "/api/runs", "/nowhere", "/api/runs/0~none"):
            headers = client.get(path).headers
            assert SECURITY_HEADERS.items() <= {name: headers[name] for name in SECURITY_HEADERS}.items()
        policy = client.get("/").headers["Content-Security-Policy"]
        assert "unsafe" not in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy


def test_other_methods_and_long_bodies_are_refused(tmp_path: Path):
    with asking(tmp_path, access=ACTING, allows_actions=True) as client:
        assert client.put("/api/runs").status_code == 405
        assert client.delete("/api/runs/0~run").status_code == 405
        long = client.post("/api/login", content=b"x" * 70_000, headers={"Content-Type": "application/json"})
        assert long.status_code == 413
