"""The parser of the command line: settings from the environment, and errors that say in one line what may be meant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

from ratekeeper.rates import show
from ratekeeper.spelling import nearest

BAD_INPUT = 2
PREFIX = "RATEKEEPER_"
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_NOT_GIVEN: Any = object()
_NO_SETTINGS = ("help", "version")
OTHER_VARIABLES = {"RATEKEEPER_TOKEN", "RATEKEEPER_CALLER_TOKEN"}  # no options: the command line shows its secrets


class CommandParser(argparse.ArgumentParser):
    """The parser of one command, or of all commands.

    Options that are `settings` may also be given by the environment: `--store` as RATEKEEPER_STORE. The command line
    counts first. What is left over of the arguments is added to `words`, if the command has these.
    """

    settings: Collection[str] | None = ()
    """Which options are settings, such as "store"; None: all."""

    def format_help(self) -> str:
        """Return the help, which names the variables."""
        for variable, option in self._by_variable().items():
            if option.help is not None and variable not in option.help:
                option.help = f"{option.help} [{variable}]"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Exit with one line on standard error and the status for invalid input."""
        self.exit(BAD_INPUT, f"{self.prog}: {' '.join(message.split())}\n")

    def parse_known_args(  # type: ignore[override]  # which is overloaded for namespaces of other types
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Read the arguments, then the environment."""
        arguments = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown(arguments)
        settings = self._by_variable()
        if self.settings is None:
            self._doubt_others(settings)
        given = {variable: option for variable, option in settings.items() if variable in os.environ}
        repeatable = {variable for variable, option in given.items() if isinstance(option.default, list)}
        for variable, option in given.items():
            option.default = None if variable in repeatable else _NOT_GIVEN
        parsed, left = super().parse_known_args(arguments, namespace)
        for variable, option in given.items():
            if (value := getattr(parsed, option.dest)) is None or value is _NOT_GIVEN:
                setattr(parsed, option.dest, self._read(variable, option, variable in repeatable))
        if hasattr(parsed, "words") and not any(each.startswith("-") for each in left):
            parsed.words = [*(parsed.words or ()), *left]  # those that follow another option
            left = []
        return parsed, left

    def _by_variable(self) -> dict[str, argparse.Action]:
        """Return the options that are settings, each with its variable."""
        return {
            f"{PREFIX}{option.dest.upper()}": option
            for option in self._actions
            if any(name.startswith("--") for name in option.option_strings)
            and option.dest not in _NO_SETTINGS
            and (self.settings is None or option.dest in self.settings)
        }

    def _read(self, variable: str, option: argparse.Action, is_list: bool) -> Any:
        text = os.environ[variable]
        if not text:
            self.error(f"{variable} is empty; give it a value or remove it")
        if is_list:
            return [self._convert(variable, option, part.strip()) for part in text.split(",")]
        return self._convert(variable, option, text)

    def _convert(self, variable: str, option: argparse.Action, text: str) -> Any:
        convert: Any = option.type or (_switch if option.nargs == 0 else str)
        try:
            value = convert(text)
        except (argparse.ArgumentTypeError, ValueError) as error:
            by_kubernetes = "; Kubernetes sets it for a Service of this name: set enableServiceLinks: false"
            self.error(f"{variable} {error}{by_kubernetes if text.startswith('tcp://') else ''}")
        if option.choices is not None and value not in option.choices:
            self.error(f"{variable} must be one of {', '.join(map(str, option.choices))}, not {show(text)}")
        return value

    def _doubt_others(self, settings: Collection[str]) -> None:
        """Say which variables look like misspelt settings."""
        for variable in os.environ.keys() - settings - OTHER_VARIABLES:
            if variable.startswith(PREFIX):
                meant = nearest(variable.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in settings])
                if meant is not None:
                    said = f"{variable} is not a setting; did you mean {PREFIX}{meant}?"
                    print(f"{self.prog}: {said}", file=sys.stderr)

    def _refuse_unknown(self, arguments: list[str]) -> None:
        """Say what may be meant by an unknown command or option. argparse would rather miss an argument."""
        commands = self._commands()
        for argument in arguments:
            name = argument.partition("=")[0]
            if argument == "--" or (commands and argument in commands):
                return
            if commands and not argument.startswith("-"):
                self.error(f"unknown command {show(argument)}{_hint(argument, commands)}")
            if name.startswith("--") and name not in self._option_string_actions:
                self.error(f"unknown option {name}{_hint(name, self._option_string_actions)}")

    def _commands(self) -> Collection[str]:
        """Return the commands that are below this one."""
        return [
            name
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001 - third-party, without a public name
            for name in action.choices
        ]


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError(f"must be one of {', '.join(_SWITCH)}, not {show(text)}")
    return _SWITCH[text.lower()]


def _hint(word: str, known: Iterable[str]) -> str:
    meant = nearest(word, known)
    return "; see --help" if meant is None else f"; did you mean {meant}?"
