"""Offers of actions: each is shown with its selection and its command line, and can be taken up once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.client.aio import AsyncAdminClient
from foqs.console.command_lines import command
from foqs.model.errors import InvalidArgumentError
from foqs.model.jobs import Job

REASON_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the dialog.

    flag: the option of the command that has its value; for a line of its own, that line without the value.
    choices: values with their labels; none for a text. bounds: of a number.
    """

    name: str
    label: str
    value: str = ""
    flag: str = ""
    hint: str = ""
    choices: Sequence[tuple[str, str]] = ()
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of an action: a message, and the job that does it, if it has one."""

    message: str
    job: Job | None = None


Inputs = Mapping[str, str]
Do = Callable[[AsyncAdminClient, Inputs, int], Awaitable[Done]]
"""Does an action by the client of a viewer, with the checked inputs, at a time in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An action with everything that its dialog shows.

    facts: the selection.  button: the words on the button.  typed: the text that must be typed before.
    command: the line that does the same.  back: the page to return to.  other: another action with its label.
    count: the number of items, if it was counted.
    """

    title: str
    button: str
    facts: Sequence[tuple[str, str]]
    command: str
    do: Do
    back: str
    fields: Sequence[Field] = ()
    is_danger: bool = False
    typed: str = ""
    note: str = ""
    other: tuple[str, str] | None = None
    count: int | None = None

    async def take_up(self, admin: AsyncAdminClient, inputs: Inputs, now_ms: int) -> Done:
        """Do it. Raises InvalidArgumentError for inputs that are not those of the dialog, and FoqsErrors of hosts."""
        if self.typed and inputs.get("typed", "") != self.typed:
            raise InvalidArgumentError(f"the typed text is not {self.typed!r:.120}: nothing was done")
        checked = {one.name: _checked(one, inputs.get(one.name, "")) for one in self.fields}
        return await self.do(admin, checked, now_ms)


def _checked(field: Field, text: str) -> str:
    text = text.strip()
    if field.choices and text not in {value for value, _ in field.choices}:
        raise InvalidArgumentError(f"{field.label} {text!r:.80} is none of the choices: nothing was done")
    if len(text) > REASON_CHARS_MAX:
        raise InvalidArgumentError(f"{field.label} has more than {REASON_CHARS_MAX} characters: nothing was done")
    if field.bounds:
        least, most = field.bounds
        try:
            value = float(text or 0)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise InvalidArgumentError(
                f"{field.label} {text!r:.80} is not within {least:g}..{most:g}: nothing was done"
            )
    return text


def line(words: Sequence[str], arguments: Sequence[str], options: Sequence[str] = ()) -> str:
    """Return a command line whose arguments are not taken for options, also if they begin with a dash."""
    mark = ["--"] if any(one.startswith("-") for one in arguments) else []
    return command("foqs", *words, *options, *mark, *arguments)
