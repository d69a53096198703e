"""How the package hangs together: imports point one way, modules stay small, the public names are the promised ones."""

import ast
import graphlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import ratekeeper
import ratekeeper.http
import ratekeeper.stores
import ratekeeper.testing

SOURCE = Path(ratekeeper.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
OUTSIDE = (
    "simulate",
    "integrations",
    "service",
    "playground",
    "commands.py",
    "command_targets.py",
    "completion_command.py",
    "policy_commands.py",
    "override_commands.py",
    "top_command.py",
    "service_client.py",
    "cli.py",
    "command_parser.py",
    "__main__.py",
    "subcommands.py",
)
CORE = [path for path in MODULES if path.relative_to(SOURCE).parts[0] not in OUTSIDE]
INTEGRATIONS = sorted((SOURCE / "integrations").glob("*.py"))
FRAMEWORKS = {  # what each integration needs besides ratekeeper
    "asgi": set(),
    "cors": set(),
    "starlette": {"starlette"},
    "fastapi": {"fastapi", "starlette"},
    "httpx": {"httpx"},
    "httpx2": {"httpx2"},
    "transports": set(),
    "requests": {"requests", "urllib3"},
    "wsgi": set(),
    "flask": {"flask"},
    "flask_requests": {"flask", "werkzeug"},
    "django": {"django", "asgiref"},
    "django_settlement": {"asgiref"},
    "flask_settings": set(),
    "views": set(),
    "decorator_order": set(),
    "application_options": set(),
    "endpoints": {"starlette"},
    "postponing": set(),
    "celery": {"celery"},
    "arq": {"arq"},
    "rest_framework": {"rest_framework"},
}
EXTRAS = {  # what modules of the core need from extras, when they are used
    "policies/documents.py": {"tomli"},
    "policies/yaml_reading.py": {"yaml"},
    "metrics/__init__.py": {"prometheus_client", "opentelemetry"},
    "metrics/registering.py": {"prometheus_client"},
    "metrics/exposition.py": {"prometheus_client"},
    "metrics/instruments.py": {"opentelemetry"},
}
FOR_TYPES_ONLY = {"_typeshed", "typing_extensions"}  # part of every type checker

PUBLIC = {
    *("Limiter", "AsyncLimiter", "Decision"),
    *("FixedWindow", "SlidingWindowLog", "SlidingWindowCounter", "TokenBucket", "LeakyBucket"),
    *("parse", "rule", "RatekeeperError", "InvalidRule", "RateLimited", "StoreUnavailable"),
}

# What each module may import of ours, for types as well. Each module has a line of its own; the name of a package, on
# either side, means its `__init__` only, and "." is `ratekeeper` itself.
MAY_IMPORT = {
    # values, and what they are made of
    "clock": "",
    "decision": "",
    "errors": "decision",
    "forks": "",
    "notices": "",
    "spelling": "",
    "testing": "base_limiter limiter",
    "flows": "errors",
    "rates": "errors",
    "keys": "errors rates",
    "algorithms.rule": "errors rates",
    "algorithms.bucket": "algorithms.rule rates",
    "algorithms.window": "algorithms.rule rates",
    "algorithms.leaky_bucket": "algorithms.bucket algorithms.rule errors rates",
    "algorithms.token_bucket": "algorithms.bucket algorithms.rule rates",
    "algorithms.fixed_window": "algorithms.rule algorithms.window rates",
    "algorithms.sliding_window_counter": "algorithms.rule algorithms.window rates",
    "algorithms.sliding_window_log": "algorithms.rule algorithms.window rates",
    "algorithms": (
        "algorithms.fixed_window algorithms.leaky_bucket algorithms.rule algorithms.sliding_window_counter "
        "algorithms.sliding_window_log algorithms.token_bucket"
    ),
    "rules": "algorithms errors rates",
    "arguments": "algorithms errors rates",
    "decorators": "decision errors rates",
    # stores
    "stores": (
        "errors rates stores.memory stores.paths stores.protocol stores.redis.asyncio_store stores.redis.thread_store "
        "stores.redis.urls stores.safe_urls stores.sqlite"
    ),
    "stores.protocol": "algorithms.rule clock decision",
    "stores.rules_in_force": "algorithms.rule",
    "stores.breaker": "clock errors",
    "stores.calls": "stores.protocol",
    "stores.tables": "algorithms stores.protocol stores.rules_in_force",
    "stores.eviction": "stores.protocol stores.tables",
    "stores.spinlock": "errors forks",
    "stores.deciding": "algorithms.rule decision stores.protocol",
    "stores.memory": "clock decision errors keys rates stores.deciding stores.eviction stores.protocol stores.spinlock",
    "stores.names": "stores.protocol",
    "stores.safe_urls": "",
    "stores.paths": "errors rates stores.safe_urls",
    "stores.filelock": "clock stores.spinlock",
    "stores.database": "algorithms.rule errors stores.names stores.protocol stores.rules_in_force",
    "stores.closing": "clock flows forks stores.database stores.filelock",
    "stores.file_access": (
        "clock errors flows forks stores.breaker stores.calls stores.closing stores.database stores.filelock "
        "stores.protocol stores.spinlock"
    ),
    "stores.sqlite": (
        "clock errors flows rates stores.closing stores.database stores.deciding stores.file_access stores.filelock "
        "stores.names stores.paths stores.protocol stores.rules_in_force"
    ),
    "stores.redis": "",
    "stores.redis.urls": "errors rates stores.safe_urls",
    "stores.redis.script": "algorithms",
    "stores.redis.redis_errors": "errors rates stores.protocol",
    "stores.redis.wire": (
        "clock errors rates stores.names stores.protocol stores.redis.redis_errors stores.redis.script"
    ),
    "stores.redis.topology": "errors flows stores.redis.redis_errors stores.redis.urls stores.redis.wire",
    "stores.redis.routing": (
        "errors flows stores.redis.redis_errors stores.redis.script stores.redis.topology stores.redis.urls"
    ),
    "stores.redis.semaphore": "clock errors stores.redis.redis_errors",
    "stores.redis.tls": "",
    "stores.redis.jobs": "clock stores.redis.redis_errors",
    "stores.redis.thread_jobs": "clock stores.redis.jobs stores.redis.semaphore",
    "stores.redis.asyncio_jobs": "clock stores.redis.jobs stores.redis.redis_errors",
    "stores.redis.redis_client": "errors rates stores.redis.topology stores.redis.urls",
    "stores.redis.servers": (
        "clock errors flows stores.breaker stores.calls stores.protocol stores.redis.redis_client "
        "stores.redis.redis_errors stores.redis.routing stores.redis.script stores.redis.topology stores.redis.urls "
        "stores.redis.wire"
    ),
    "stores.redis.denials": "clock decision rates stores.protocol stores.redis.redis_errors",
    "stores.redis.batching": "",
    "stores.redis.split": "flows stores.protocol stores.redis.redis_errors stores.redis.wire",
    "stores.redis.thread_connections": (
        "clock flows forks stores.protocol stores.redis.redis_client stores.redis.redis_errors stores.redis.routing "
        "stores.redis.semaphore stores.redis.servers stores.redis.thread_jobs stores.redis.tls stores.redis.topology "
        "stores.redis.urls stores.redis.wire"
    ),
    "stores.redis.asyncio_connections": (
        "clock errors flows stores.protocol stores.redis.asyncio_jobs stores.redis.redis_client "
        "stores.redis.redis_errors stores.redis.routing stores.redis.servers stores.redis.tls stores.redis.topology "
        "stores.redis.urls stores.redis.wire"
    ),
    "stores.redis.thread_batches": (
        "clock errors stores.breaker stores.protocol stores.redis.batching stores.redis.redis_errors "
        "stores.redis.semaphore stores.redis.servers stores.redis.thread_connections"
    ),
    "stores.redis.asyncio_batches": (
        "clock errors stores.breaker stores.protocol stores.redis.asyncio_connections stores.redis.batching "
        "stores.redis.redis_errors stores.redis.servers"
    ),
    "stores.redis.thread_nodes": (
        "clock errors flows stores.protocol stores.redis.redis_errors stores.redis.servers stores.redis.split "
        "stores.redis.thread_batches stores.redis.thread_connections stores.redis.urls"
    ),
    "stores.redis.asyncio_nodes": (
        "clock flows stores.protocol stores.redis.asyncio_batches stores.redis.asyncio_connections "
        "stores.redis.redis_errors stores.redis.servers stores.redis.split stores.redis.urls"
    ),
    "stores.redis.base_store": (
        "clock errors flows forks stores.names stores.protocol stores.redis.denials stores.redis.redis_errors "
        "stores.redis.routing stores.redis.script stores.redis.servers stores.redis.topology stores.redis.urls "
        "stores.redis.wire stores.safe_urls"
    ),
    "stores.redis.thread_store": (
        "clock flows stores.protocol stores.redis.base_store stores.redis.routing stores.redis.thread_batches "
        "stores.redis.thread_connections stores.redis.thread_nodes"
    ),
    "stores.redis.asyncio_store": (
        "clock flows stores.protocol stores.redis.asyncio_batches stores.redis.asyncio_connections "
        "stores.redis.asyncio_nodes stores.redis.base_store stores.redis.routing"
    ),
    # from a store up to a limiter
    "ruleset": "algorithms.rule arguments decision enforcement errors keys rates rules stores.protocol",
    "event_loops": "",
    "forecasts": "stores.breaker stores.protocol",
    "queues": "clock event_loops forecasts forks stores.protocol",
    "reservations": "decision flows queues ruleset stores.protocol",
    "fallback": "clock decision errors flows notices rules stores.breaker stores.memory stores.protocol",
    "enforcement": "clock fallback leases rules stores.protocol",
    "leases": "clock errors flows forks stores.protocol",
    "waiting": (
        "clock decision errors fallback flows forecasts leases queues rates reservations ruleset stores.protocol"
    ),
    "observers": "clock decision stores.protocol",
    "base_limiter": (
        "algorithms.rule arguments clock decision enforcement fallback flows leases notices observers queues rules "
        "ruleset stores stores.protocol waiting"
    ),
    "limiter": (
        "base_limiter clock decision decorators errors flows queues reservations ruleset stores.protocol waiting"
    ),
    ".": "algorithms decision errors limiter rules",
    # metrics
    "metrics.families": "",
    "metrics.tallies": "forks metrics.families",
    "metrics.counting": "decision forks metrics.families metrics.tallies observers stores.protocol",
    "metrics.collecting": (
        "base_limiter decision metrics.counting metrics.families metrics.tallies observers queues stores.protocol"
    ),
    "metrics.exposition": "metrics.families",
    "metrics.registering": "metrics.collecting metrics.exposition metrics.families",
    "metrics.instruments": (
        "base_limiter clock decision metrics.collecting metrics.counting metrics.families metrics.tallies observers "
        "stores.protocol"
    ),
    "metrics": "base_limiter metrics.instruments metrics.registering",
    # HTTP without a framework
    "http": (
        "http.admission http.client_keys http.gate http.gate_options http.headers http.outgoing http.parse "
        "http.problem http.reports http.request http.routes notices rules"
    ),
    "http.asgi_types": "",
    "http.request": "",
    "http.structured": "",
    "http.problem": "decision",
    "http.claims": "",
    "http.address": "errors http.claims http.request rates",
    "http.client_keys": (
        "errors http.address http.claims http.request http.url_paths keys rates ruleset stores.protocol"
    ),
    "http.headers": "algorithms clock decision errors http.structured rates",
    "http.http_limiter": "algorithms http.headers",
    "http.header_writers": "algorithms http.headers stores.protocol",
    "http.url_paths": "errors rates",
    "http.chosen_rules": "errors rates rules",
    "http.parse": "clock http.structured",
    "http.exemptions": "flows http.client_keys http.request notices rates",
    "http.routes": "decision errors http.client_keys http.request http.url_paths limiter rates rules ruleset",
    "http.request_attributes": "errors flows http.address http.claims http.client_keys http.request rates",
    "http.policy_limits": (
        "arguments flows http.header_writers http.headers http.http_limiter http.request http.request_attributes "
        "notices policies rates"
    ),
    "http.route_limits": (
        "arguments decision errors http.chosen_rules http.client_keys http.headers http.http_limiter "
        "http.policy_limits http.request http.routes notices rates ruleset"
    ),
    "http.limiter_maker": (
        "errors fallback http.address http.client_keys http.headers http.http_limiter http.policy_limits "
        "http.request_attributes http.routes limiter notices rates rules stores stores.protocol"
    ),
    "http.matching": "http.request http.route_limits http.url_paths notices",
    "http.held_requests": "errors forks rates",
    "http.admission": (
        "decision errors flows http.held_requests http.http_limiter http.request http.route_limits reservations"
    ),
    "http.admitting": (
        "errors flows http.admission http.held_requests http.http_limiter http.policy_limits http.request "
        "http.route_limits keys"
    ),
    "http.reports": "decision http.admission http.headers http.request",
    "http.users": "",
    "http.gate_options": (
        "clock fallback http.client_keys http.headers http.policy_limits http.request_attributes http.routes limiter "
        "notices policies rates rules ruleset spelling stores.protocol"
    ),
    "http.gate": (
        "arguments clock errors fallback flows http.admission http.admitting http.client_keys http.exemptions "
        "http.gate_options http.headers http.held_requests http.limiter_maker http.matching http.policy_limits "
        "http.problem http.reports http.request http.request_attributes http.route_limits http.routes keys limiter "
        "notices policies rates rules ruleset stores.protocol"
    ),
    "http.backoff": "clock forks",
    "http.settlement": "errors flows reservations ruleset",
    "http.outgoing": (
        "arguments clock decision errors flows http.backoff http.client_keys http.parse http.settlement limiter queues "
        "rates reservations rules ruleset stores waiting"
    ),
    # policies
    "policies.caller_hashes": "",
    "policies.mistakes": "errors spelling",
    "policies.text_lines": "policies.mistakes",
    "policies.yaml_reading": "policies.mistakes policies.text_lines",
    "policies.documents": "errors policies.mistakes policies.text_lines policies.yaml_reading rates",
    "policies.attributes": "errors http.claims http.url_paths rates",
    "policies.conditions": "http.address http.url_paths policies.attributes",
    "policies.templates": "errors http.claims keys policies.attributes rates stores.protocol",
    "policies.model": "algorithms fallback policies.conditions policies.templates rates",
    "policies.build": (
        "algorithms arguments errors fallback http.chosen_rules policies.caller_hashes policies.conditions "
        "policies.documents policies.mistakes policies.model policies.templates rates rules spelling"
    ),
    "policies.overrides": "http.url_paths policies.attributes policies.conditions",
    "policies.runtime_overrides": (
        "policies.build policies.conditions policies.documents policies.mistakes policies.model rates spelling"
    ),
    "policies.versions": (
        "algorithms arguments clock policies.attributes policies.conditions policies.model policies.overrides "
        "policies.runtime_overrides ruleset stores.protocol"
    ),
    "policies.policy_rules": (
        "algorithms arguments clock decision enforcement fallback policies.model policies.runtime_overrides "
        "policies.versions rules ruleset stores.protocol"
    ),
    "policies.policies": (
        "arguments clock decision errors fallback limiter notices policies.build policies.documents "
        "policies.explaining policies.model policies.policy_rules policies.runtime_overrides rates ruleset spelling "
        "stores.protocol"
    ),
    "policies.explaining": ("policies.attributes policies.model policies.versions stores.protocol"),
    "policies.differences": "policies.model",
    "policies.schema": "algorithms arguments fallback policies.build policies.caller_hashes",
    "policies": ("policies.attributes policies.mistakes policies.model policies.policies policies.runtime_overrides"),
    # frameworks and clients
    "integrations": "",
    "integrations.asgi": (
        "http http.asgi_types http.headers http.reports http.request http.routes http.url_paths http.users "
        "integrations.cors"
    ),
    "integrations.cors": "http.asgi_types",
    "integrations.wsgi": "http http.headers http.reports http.request http.routes",
    "integrations.endpoints": "http.asgi_types integrations.views",
    "integrations.application_options": "http http.asgi_types http.client_keys http.routes integrations.views",
    "integrations.starlette": (
        "decision errors flows http http.admission http.asgi_types http.gate_options http.headers http.reports "
        "http.routes http.users integrations integrations.application_options integrations.asgi "
        "integrations.decorator_order integrations.endpoints integrations.views stores"
    ),
    "integrations.fastapi": (
        "http http.problem http.routes integrations integrations.endpoints integrations.starlette rates"
    ),
    "integrations.views": "arguments http http.routes",
    "integrations.decorator_order": "",
    "integrations.flask_settings": "errors http http.client_keys http.routes rates spelling",
    "integrations.flask_requests": "decision errors http http.reports integrations.wsgi",
    "integrations.flask": (
        "decision errors http http.client_keys http.gate_options http.matching http.policy_limits http.routes "
        "integrations.decorator_order integrations.flask_requests integrations.flask_settings integrations.views "
        "integrations.wsgi rates ruleset stores"
    ),
    "integrations.django_settlement": "http integrations.wsgi",
    "integrations.django": (
        "errors http http.client_keys http.gate_options http.policy_limits http.reports http.routes "
        "integrations.django_settlement integrations.wsgi policies rates ruleset stores"
    ),
    "integrations.rest_framework": "errors http http.client_keys http.routes integrations.django ruleset",
    "integrations.transports": "http.outgoing http.settlement limiter rules ruleset stores",
    "integrations.httpx": "integrations.transports",
    "integrations.httpx2": "integrations.transports",
    "integrations.requests": "http.outgoing http.settlement limiter rules ruleset stores",
    "integrations.postponing": (
        "algorithms arguments decision errors flows http.client_keys limiter rates rules ruleset stores"
    ),
    "integrations.celery": "clock errors flows integrations.postponing limiter rules stores",
    "integrations.arq": "flows integrations.postponing limiter rules stores",
    # the service and its page
    "service": "",
    "service.web": "http.headers",
    "service.live": "clock",
    "service.heavy_hitters": "",
    "service.talkers": "service.heavy_hitters stores.protocol",
    "service.service_counter": ("decision metrics.counting observers service.live service.talkers stores.protocol"),
    "service.slabs": "clock metrics.families metrics.tallies",
    "service.key_hashes": "stores.names stores.protocol",
    "service.log_lines": "subcommands",
    "service.access_log": "clock service.web",
    "service.denial_log": "decision observers service.key_hashes stores.protocol",
    "service.figures": (
        "limiter metrics.counting metrics.families metrics.tallies observers policies queues service.denial_log "
        "service.heavy_hitters "
        "service.live service.service_counter service.slabs service.talkers service.worker stores stores.protocol"
    ),
    "service.operating": (
        "clock metrics.exposition metrics.families service.figures service.key_hashes service.talkers service.web "
        "stores.protocol"
    ),
    "service.worker": "",
    "service.store_time": "clock",
    "service.versioned_values": "flows service.store_time stores.protocol",
    "service.editions": "errors policies policies.documents",
    "service.following": "errors",
    "service.served_policies": (
        ". clock decision errors http http.header_writers http.headers notices policies policies.model "
        "policies.policies policies.versions service.editions service.following stores stores.protocol"
    ),
    "service.policy_sources": (
        "clock errors policies policies.documents service.editions service.served_policies service.web"
    ),
    "service.policy_store": (
        "clock errors policies.documents service.editions service.policy_sources service.served_policies "
        "service.versioned_values service.web"
    ),
    "service.override_store": (
        "errors policies policies.build policies.runtime_overrides service.editions service.served_policies "
        "service.store_time service.versioned_values"
    ),
    "service.audit_trail": "errors service.editions service.store_time service.versioned_values",
    "service.administration": (
        "clock errors policies service.audit_trail service.editions service.override_store service.policy_sources "
        "service.policy_store service.served_policies service.store_time service.versioned_values stores "
        "stores.protocol"
    ),
    "service.shared": (
        ". algorithms http http.http_limiter notices policies.model service service.administration service.callers "
        "service.figures service.served_policies service.worker stores"
    ),
    "service.bodies": (
        ". algorithms http.http_limiter policies rules service.served_policies service.shared service.web"
    ),
    "service.batches": "decision errors service.bodies service.shared service.web",
    "service.openapi_operations": "",
    "service.openapi_policies": "policies.build policies.runtime_overrides service.openapi_operations",
    "service.operating_paths": "service.operating service.talkers",
    "service.openapi": (
        "algorithms keys rules service.batches service.bodies service.openapi_operations service.openapi_policies "
        "service.operating_paths"
    ),
    "service.callers": "policies policies.caller_hashes service.web",
    "service.guards": "service.callers service.web",
    "service.api": (
        "decision errors http.headers inspections service.batches service.bodies service.openapi "
        "service.served_policies service.shared service.web stores.protocol"
    ),
    "service.forward_auth": (
        "decision errors flows http.address http.admission http.headers http.held_requests http.problem http.request "
        "http.request_attributes notices policies service.bodies service.guards service.served_policies service.shared "
        "service.web"
    ),
    "service.policy_api": (
        "decision errors policies policies.documents policies.explaining policies.versions service.administration "
        "service.api service.bodies service.editions service.policy_sources service.policy_store "
        "service.served_policies service.shared service.web"
    ),
    "playground.files": "service.web",
    "playground.visitors": "algorithms clock service.web",
    "playground.configs": "algorithms algorithms.rule playground.visitors rates rules service.web",
    "playground.compare": ". algorithms playground.configs rates rules service.web simulate",
    "playground.demo": (
        ". algorithms inspections playground.configs playground.visitors rates service.api service.shared service.web "
        "stores.protocol"
    ),
    "playground": "playground.compare playground.demo playground.files service.shared service.web",
    "service.asgi_server": "http.asgi_types service.web",
    "service.app": (
        "arguments clock errors fallback flows http.asgi_types playground policies.model service service.access_log "
        "service.administration service.api service.asgi_server service.forward_auth service.guards service.operating "
        "service.policy_api "
        "service.shared service.web service.worker stores"
    ),
    "service.rsgi": "http.headers service.app service.connections service.web",
    "service.connections": "clock",
    "service.listening": "",
    "service.certificates": "",
    "service.granian_server": "service.certificates service.listening service.rsgi",
    "service.running": (
        "service.app service.certificates service.connections service.granian_server service.listening service.rsgi"
    ),
    "service.supervisor": "clock service.worker",
    "service.serve_options": "arguments fallback rates service service.log_lines subcommands",
    "service.serve": (
        "errors service.app service.certificates service.listening service.log_lines service.running "
        "service.serve_options service.supervisor service.worker subcommands"
    ),
    # the command line
    "simulate.comparable": "algorithms errors rates",
    "simulate.patterns": "rates",
    "simulate.grid": "rates",
    "simulate.progress": "clock",
    "simulate.traffic": "algorithms errors rates simulate.comparable simulate.patterns",
    "simulate.run": "algorithms rules simulate.comparable simulate.traffic",
    "simulate": "simulate.comparable simulate.patterns simulate.run simulate.traffic",
    "simulate.plot": "errors rates simulate.grid simulate.run",
    "simulate.table": "simulate.grid simulate.run",
    "simulate.chart": "simulate.grid simulate.run simulate.table simulate.traffic",
    "simulate.options": "rates simulate.chart simulate.patterns simulate.plot subcommands",
    "simulate.command": (
        "algorithms errors rates rules simulate.chart simulate.options simulate.plot simulate.progress simulate.run "
        "simulate.traffic subcommands"
    ),
    "command_parser": "rates spelling",
    "subcommands": "command_parser errors rates",
    "inspections": "stores.protocol",
    "command_targets": "algorithms errors limiter policies rates rules subcommands",
    "commands": "command_targets decision errors inspections limiter subcommands",
    "policy_commands": "errors policies policies.caller_hashes policies.differences policies.schema subcommands",
    "service_client": "rates",
    "override_commands": "command_parser errors rates service_client subcommands",
    "top_command": "service_client subcommands",
    "completion_command": "subcommands",
    "cli": (
        "command_parser commands completion_command override_commands policy_commands service.serve simulate.command "
        "top_command"
    ),
    "__main__": "cli",
}
# An application imports from one integration, and finds the same thing under the same name in each of them.
PUBLIC_IN_SEVERAL_INTEGRATIONS = {
    *("RateLimitMiddleware", "RateLimitExceeded", "RateLimit"),
    *("LimitedTransport", "AsyncLimitedTransport"),
}


def name_of(path):
    return str(path.relative_to(SOURCE))


def module_name(path):
    """Return the name of a module inside of the package; "." is the package itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts).removesuffix("__init__").removesuffix(".") or "."


PATHS = {module_name(path): path for path in MODULES}


def imports(path):
    """Yield the dotted name of every module that a file imports, anywhere in it, for types as well."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they can be followed"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_modules(path):
    """Yield our modules that a file imports; for `from package import name`, the module `name` if it is one."""
    for name in imports(path):
        if name.partition(".")[0] == "ratekeeper":
            inside = name.removeprefix("ratekeeper").removeprefix(".")
            while inside and inside not in PATHS:
                inside = inside.rpartition(".")[0]
            yield inside or "."


def test_there_are_modules_to_look_at():
    assert {"limiter.py", "waiting.py", "algorithms/bucket.py", "stores/memory.py"} <= set(map(name_of, MODULES))
    assert "stores.protocol" in set(our_modules(SOURCE / "limiter.py"))


@pytest.mark.parametrize("module", PATHS)
def test_a_module_imports_only_what_the_table_allows(module):
    assert module in MAY_IMPORT, f"{module} has no line in MAY_IMPORT: add a line for it to MAY_IMPORT"
    more = set(our_modules(PATHS[module])) - {module, *MAY_IMPORT[module].split()}
    assert more == set(), f"{module} imports {more}: add to its line in MAY_IMPORT what it should import"


def test_the_table_names_only_modules_that_exist():
    named = {*MAY_IMPORT, *(module for line in MAY_IMPORT.values() for module in line.split())}
    assert named - set(PATHS) == set(), "take these out of MAY_IMPORT"


def test_there_are_no_cycles_of_imports():
    graph = {module: set(our_modules(path)) - {module} for module, path in PATHS.items()}
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
    assert len(order) == len(PATHS)


def test_no_two_files_have_one_name():
    names = Counter(path.name for path in MODULES if path.name != "__init__.py")
    assert [name for name, times in names.items() if times > 1] == []


def types_in(path):
    """Yield the name and the definition of each class of a file, and of each type that it names for other files."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                yield name, ast.dump(node.value)


def test_no_two_types_have_one_name():
    named = {definition: name for path in MODULES for name, definition in types_in(path)}
    names = Counter(named.values())
    each_rule_has_its_own = {"State"}
    two = {name for name, times in names.items() if times > 1}
    assert two - PUBLIC_IN_SEVERAL_INTEGRATIONS - each_rule_has_its_own == set()


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def private_names(code, unless):
    """Yield the private names that code imports from us or reads from other objects, except on lines with `unless`."""
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Call) or unless in lines[node.lineno - 1]:
            continue
        if not isinstance(node, ast.Call):
            names = [f"{getattr(node, 'module', '')}.{alias.name}".strip(".") for alias in node.names]
            yield from (part for name in names if name.startswith("ratekeeper.") for part in name.split("."))
        elif ast.unparse(node.func) in BY_NAME and ast.unparse(node.args[0]) != "self":
            yield from (part.value for part in node.args if isinstance(part, ast.Constant))


THIRD_PARTY = "noqa: SLF001 - third-party"
TESTS = sorted(Path(__file__).parent.rglob("*.py"))
BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "object.__setattr__", "attrgetter", "methodcaller"}


@pytest.mark.parametrize(
    "code",
    [
        "from ratekeeper.limiter import Limiter, _inner",
        "from ratekeeper._inner import name",
        "import ratekeeper._inner",
        "getattr(limiter, '_ruleset')",
        "hasattr(self.store, '_keys')",
        "attrgetter('_ruleset')(limiter)",
    ],
)
def test_a_private_name_is_found(code):
    assert [name for name in private_names(code, THIRD_PARTY) if is_private(str(name))]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_private_name_of_ours_is_used_in_another_module(path):  # ruff looks at attributes, SLF001
    names = private_names(path.read_text("utf-8"), THIRD_PARTY)
    assert [name for name in names if is_private(str(name))] == []


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_a_test_that_imports_a_private_name_says_why(path):  # `inside` has those that several tests need
    names = private_names(path.read_text("utf-8"), "# private: ")
    assert [name for name in names if is_private(str(name))] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_private_name_is_used_elsewhere_only_if_a_third_party_has_no_public_one(path):
    lines = [line for line in path.read_text("utf-8").splitlines() if "noqa: SLF001" in line]
    assert [line for line in lines if THIRD_PARTY not in line] == []


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_the_core_imports_nothing_outside_of_the_standard_library(path):
    roots = {name.split(".")[0] for name in imports(path)}
    clients = ("stores/redis/redis_client.py", "stores/redis/thread_connections.py", "stores/redis/tls.py")
    client = {"redis", "hiredis", "async_timeout"} if name_of(path) in clients else set()
    client |= {"pytest"} if name_of(path) == "testing.py" else set()
    client |= EXTRAS.get(name_of(path), set())
    assert roots - set(sys.stdlib_module_names) - {"ratekeeper"} <= client


@pytest.mark.parametrize("path", INTEGRATIONS, ids=name_of)
def test_an_integration_needs_its_framework_only(path):
    roots = {name.split(".")[0] for name in imports(path)} - FOR_TYPES_ONLY
    assert roots - set(sys.stdlib_module_names) - {"ratekeeper"} <= FRAMEWORKS.get(path.stem, set())


def test_only_a_redis_store_needs_the_redis_client():
    code = """
import sys
sys.modules["redis"] = None  # as if it were not installed
import ratekeeper
assert ratekeeper.Limiter("1/s").hit("k")
try:
    ratekeeper.Limiter("1/s", "redis://localhost")
except ratekeeper.StoreUnavailable as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'ratekeeper[redis]'" in said


@pytest.mark.parametrize("module", ["http", "integrations.asgi", "integrations.wsgi"])
def test_what_needs_no_framework_imports_little(module):
    code = f"import sys, ratekeeper.{module}; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert (
        loaded & {"redis", "msgspec", "starlette", "werkzeug", "httpx", "requests", "email.utils", "http.client"}
        == set()
    )


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "__init__.py"], ids=name_of)
def test_the_map_of_a_package_names_its_modules(path):
    where = path.parent / "__init__.py"
    assert path.stem in named_in_map(where), f"name `{path.stem}` in the map of its package: {name_of(where)}"


@pytest.mark.parametrize("path", [path for path in MODULES if path.name == "__init__.py"], ids=name_of)
def test_the_map_of_a_package_names_its_packages(path):
    packages = {inner.parent.name for inner in path.parent.glob("*/__init__.py")}
    assert packages - named_in_map(path) == set(), f"name them in the map of their package: {name_of(path)}"


def named_in_map(package):
    """Return what the docstring of a package has in backquotes; a package there may end in a slash."""
    return set(re.findall(r"`(\w+)/?`", ast.get_docstring(ast.parse(package.read_text("utf-8")))))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nobody_asks_which_store_it_is(path):  # what differs is in the protocol
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    checks = [ast.unparse(call) for call in calls if ast.unparse(call.func) in {"isinstance", "issubclass"}]
    kinds = {"MemoryStore", "SqliteStore", "RedisStore", "AsyncRedisStore"}
    assert [check for check in checks if kinds & set(re.findall(r"\w+", check))] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_needs_scrolling_for_minutes(path):
    assert len(path.read_text("utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


def test_the_public_names_are_the_promised_ones():
    assert set(ratekeeper.__all__) == PUBLIC
    assert len(ratekeeper.__all__) == len(PUBLIC)


@pytest.mark.parametrize(
    "module", [ratekeeper, ratekeeper.http, ratekeeper.stores, ratekeeper.testing], ids=lambda it: it.__name__
)
def test_every_public_name_is_there(module):
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_stores_and_the_helpers_for_tests_are_the_promised_ones():
    stores = {"MemoryStore", "SqliteStore", "RedisStore", "AsyncRedisStore", "Store", "from_url"}
    assert set(ratekeeper.stores.__all__) == stores
    assert ratekeeper.testing.__all__ == ["ManualClock", "reset_limiters"]


def test_the_package_is_typed():
    assert (SOURCE / "py.typed").exists()
