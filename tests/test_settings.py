"""Options that also come from the environment: which, what counts first, and what is said when one is wrong."""

from pathlib import Path

import pytest

from ratekeeper.cli import build_parser, main


def serve(*arguments):
    """Return the options of `ratekeeper serve`."""
    return build_parser().parse_args(["serve", *arguments])


def complaint(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_every_option_of_the_service_is_a_setting_that_the_help_names(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    options = set(vars(serve())) - {"run", "version"}
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    said = capsys.readouterr().out
    assert [name for name in sorted(options) if f"[RATEKEEPER_{name.upper()}]" not in said] == []
    assert options > {"store", "port", "workers"}


def test_a_setting_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("RATEKEEPER_STORE", "redis://cache")
    monkeypatch.setenv("RATEKEEPER_PORT", "9000")
    monkeypatch.setenv("RATEKEEPER_TOKEN_FILE", "/run/token")
    monkeypatch.setenv("RATEKEEPER_ALLOW_HOST", "limits.example, limits")
    options = serve()
    assert (options.store, options.port, options.token_file) == ("redis://cache", 9000, Path("/run/token"))
    assert options.allow_host == ["limits.example", "limits"]


def test_the_command_line_counts_first(monkeypatch):
    monkeypatch.setenv("RATEKEEPER_PORT", "none")
    monkeypatch.setenv("RATEKEEPER_ALLOW_HOST", "limits.example")
    options = serve("--port", "8080", "--allow-host", "limits")
    assert (options.port, options.allow_host) == (8080, ["limits"])


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PORT", "http", "RATEKEEPER_PORT must be a whole number from 1 to 65535, not 'http'"),
        ("DEADLINE", "-1", "RATEKEEPER_DEADLINE must be a number of seconds above 0, not '-1'"),
        ("STORE", "", "RATEKEEPER_STORE is empty; give it a value or remove it"),
        (
            "PORT",
            "tcp://10.0.0.1:80",
            (
                "RATEKEEPER_PORT must be a whole number from 1 to 65535, not 'tcp://10.0.0.1:80'; "
                "Kubernetes sets it for a Service of this name: set enableServiceLinks: false"
            ),
        ),
    ],
)
def test_an_error_names_the_variable(capsys, monkeypatch, variable, value, said):
    monkeypatch.setenv(f"RATEKEEPER_{variable}", value)
    assert complaint(capsys, "serve") == f"ratekeeper serve: {said}\n"


def test_what_looks_like_a_misspelt_setting_is_told(capsys, monkeypatch):
    monkeypatch.setenv("RATEKEEPER_STROE", "redis://cache")
    monkeypatch.setenv("RATEKEEPER_SERVICE_HOST", "10.0.0.1")  # as Kubernetes sets it
    serve()
    assert (
        capsys.readouterr().err
        == "ratekeeper serve: RATEKEEPER_STROE is not a setting; did you mean RATEKEEPER_STORE?\n"
    )


def test_other_commands_leave_the_variables_alone(monkeypatch):
    monkeypatch.setenv("RATEKEEPER_RATE", "3")
    assert build_parser().parse_args(["simulate"]).rate is None
