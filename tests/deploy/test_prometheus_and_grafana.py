"""What is deployed beside the service: a Prometheus that scrapes it, alerts, and a dashboard."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from ratekeeper.metrics.families import FAMILIES
from tests import servers
from tests.metrics.figures import Page
from tests.servers import PATIENCE, free_port
from tests.service.serving import Served

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "ratekeeper.rules.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "ratekeeper.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
USER = f"user {time.time_ns()}"
VARIABLES = {"$instance": ".*", "$policy": ".*", "$__rate_interval": "1m"}
SERIES = {
    *(family.name for family in FAMILIES),
    *(
        f"{family.name}_{part}"
        for family in FAMILIES
        if family.kind == "histogram"
        for part in ("bucket", "sum", "count")
    ),
}
POLICIES = """
[[policies.api.rules]]
name = "user"
limit = "fixed-window 3/day"
key = "{user}"
[[policies.tried.rules]]
name = "user"
limit = "fixed-window 1/day"
key = "{user}"
shadow = true
"""


@functools.cache
def program(name):
    """Return the path of Prometheus or of its tool."""
    found = shutil.which(name)
    if found is None:
        raise AssertionError(
            f"{name} was not found; on Debian: apt-get install prometheus, on macOS: brew install prometheus"
        )
    return found


def run(*arguments, **options):
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.mark.parametrize(
    "what", [("config", DEPLOY / "prometheus" / "prometheus.yml"), ("rules", "--lint=all", "--lint-fatal", RULES)]
)
def test_the_settings_and_the_alerts_are_valid(what):
    done = run(program("promtool"), "check", *map(str, what))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_on_what_it_is_for_and_on_nothing_else():
    done = run(program("promtool"), "test", "rules", str(Path(__file__).parent / "alerts_test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_to_do_about_each_alert_is_written_down():
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    document = (ROOT / "docs" / "operating.md").read_text()
    assert len(alerts) > 5
    assert [alert for alert in alerts if f"### {alert}\n" not in document] == []


def test_alerts_and_panels_are_about_figures_that_there_are():
    texts = [RULES.read_text(), *(expression for _, expression in EXPRESSIONS)]
    named = {name for text in texts for name in re.findall(r"\bratekeeper_\w+", text)}
    assert named <= SERIES
    assert {family.name for family in FAMILIES} <= {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}


def test_each_panel_says_what_it_shows_and_has_a_place_of_its_own():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (column, row)
            for column in range(place["x"], place["x"] + place["w"])
            for row in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(column for column, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert [panel["title"] for panel in PANELS if not panel.get("description")] == []


class Prometheus:
    """A Prometheus that runs with the settings that are deployed."""

    def __init__(self, target, directory):
        settings = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        for given, wanted in (("localhost:8080", target), ("_interval: 15s", "_interval: 1s")):
            assert given in settings
            settings = settings.replace(given, wanted)
        (directory / "prometheus.yml").write_text(settings)
        (directory / RULES.name).write_text(RULES.read_text())
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=error",
            ]
        )

    def get(self, path, **query):
        try:
            answer = httpx.get(f"{self.url}/api/v1/{path}", params=query, timeout=10).json()
        except (httpx.TransportError, ValueError):  # it has not started
            assert self._process.poll() is None, "Prometheus has ended"
            return []
        assert answer["status"] == "success", (query, answer)
        return answer["data"]["result"] if path == "query" else answer["data"]

    def until(self, expression, reached):
        """Ask until the answer, by labels, is what is wanted."""
        give_up = time.monotonic() + PATIENCE
        while True:
            samples = self.get("query", query=expression)
            found = {tuple(sorted(each["metric"].items())): float(each["value"][1]) for each in samples}
            if reached(found):
                return found
            assert time.monotonic() < give_up, f"{expression} never came to that: {found}"
            time.sleep(0.1)

    def stop(self):
        self._process.terminate()
        self._process.wait(PATIENCE)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "limits.toml"
    path.write_text(POLICIES)
    served = Served(servers.shared(servers.newest()).url, "--deadline", "30", "--policies", str(path))
    yield served
    served.stop()


@pytest.fixture(scope="module")
def prometheus(served, tmp_path_factory):
    prometheus = Prometheus(f"127.0.0.1:{served.port}", tmp_path_factory.mktemp("prometheus"))
    yield prometheus
    prometheus.stop()


def hit(served, policy, times):
    for _ in range(times):
        served.ask("POST", "/v1/hit", json={"policy": policy, "attributes": {"user": USER}})


def test_what_the_service_shows_is_as_promtool_wants_it(served):
    hit(served, "api", 1)
    done = run(program("promtool"), "check", "metrics", input=served.ask("GET", "/metrics").text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_prometheus_scrapes_what_was_decided(served, prometheus):
    hit(served, "api", 5)
    page = Page(served.ask("GET", "/metrics").text)
    counted = "sum by (policy, rule, outcome) (ratekeeper_decisions_total{job='ratekeeper', policy='api'})"
    found = prometheus.until(counted, lambda found: sum(found.values()) >= 5)
    assert found == {
        (("outcome", outcome), ("policy", policy), ("rule", rule)): times
        for (policy, rule, outcome), times in page.decisions.items()
        if policy == "api"
    }
    (target,) = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


def test_every_panel_of_the_dashboard_shows_something(served, prometheus):
    for _ in range(2):  # a rate needs two looks
        hit(served, "api", 5)
        hit(served, "tried", 3)
        prometheus.until("sum(rate(ratekeeper_decisions_total{policy='tried'}[1m]))", bool)
    empty = set()
    for title, expression in EXPRESSIONS:
        asked = expression
        for variable, value in VARIABLES.items():
            asked = asked.replace(variable, value)
        assert "$" not in asked
        if not prometheus.get("query", query=asked):
            empty.add(title)
    assert empty == {"Keys in memory", "Evictions"}  # which only a store in memory has


def test_no_alert_fires_about_a_service_that_works(prometheus):
    prometheus.until("up", lambda found: list(found.values()) == [1])
    rules = prometheus.get("rules")["groups"][0]["rules"]
    assert len(rules) == RULES.read_text().count("alert:")
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule.get("lastError")] == []
    assert prometheus.get("alerts")["alerts"] == []
