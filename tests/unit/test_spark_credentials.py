"""TLS and identities of reads and writes: their options, their files, and what nobody is shown."""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from foqs.client.encoded import EncodedItems
from foqs.client.encoded_enqueue import EncodedResult
from foqs.model import access_tokens
from foqs.model.calls import ExportSplit
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError
from foqs.spark import reader, task_client
from foqs.spark.credentials import CREDENTIAL_OPTIONS, Credentials, Replacements, in_options, located
from foqs.spark.jobs import capacity_report, enqueue, export, redrive
from foqs.spark.jobs.credential_flags import taken_credentials, with_tls
from foqs.spark.jobs.frame_reading import read_options_of
from foqs.spark.options import WriteOptions
from foqs.spark.plan import WritePlan, plan_write
from foqs.spark.read_options import ReadOptions, is_for_reading, parse_read_options
from foqs.spark.task_client import REPLACEMENTS_MAX, RenewedClient
from tests.support.certificates import Authority

REQUIRED = {"addresses": "queue-1.example:7600", "namespace": "shop"}
TOKEN = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))
SECRET = TOKEN.partition("_")[2].partition("_")[2]
DENIED = PermissionDeniedError("no")
Taken = Callable[[Mapping[str, str]], Credentials]


def of_write(given: Mapping[str, str]) -> Credentials:
    options = {**REQUIRED, "dedup": "none", **given}
    return plan_write(options, [("topic", "string"), ("payload", "binary")]).options.credentials


def of_read(given: Mapping[str, str]) -> Credentials:
    return parse_read_options({**REQUIRED, **given}).credentials


both = pytest.mark.parametrize("taken", [of_write, of_read])


@both
def test_options_for_tls_and_identity_are_those_of_the_clients(taken: Taken) -> None:
    assert taken({}) == Credentials()
    given = {
        "TLS": "True",
        "caFile": "/ca",
        "servername": "queue",
        "certFile": "/c",
        "keyFile": "/k",
        "TOKENFILE": "/t",
    }
    assert taken(given) == Credentials(
        tls=True, ca_file="/ca", server_name="queue", cert_file="/c", key_file="/k", token_file="/t"
    )
    assert taken({"tokenFile": "t", "tokensWithoutTls": "true"}).tokens_without_tls
    assert is_for_reading({**REQUIRED, **given}), "a view with them is still one for reading"


@both
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tls": "yes"}, "tls 'yes' is neither true nor false"),
        ({"caFile": "/ca"}, "caFile '/ca' is given, and tls is not true: set tls to true as well"),
        ({"certFile": "/c", "tls": "false"}, "certFile '/c' is given, and tls is not true: set tls to true as well"),
        ({"tls": "true", "keyFile": "/k"}, "keyFile is given without certFile: give the certificate of the key"),
        ({"tls": "true", "serverName": "a b"}, "serverName 'a b' is neither a host name nor an address"),
        ({"tls": "true", "caFile": ""}, "caFile '' is not a name: leave it out"),
        ({"tokenFile": "/t"}, "not sent to queue-1.example:7600 over a plain connection, .*give tls=true, or tokensWi"),
        ({"caFil": "/ca"}, "unknown option 'cafil'.*did you mean caFile"),
    ],
)
def test_options_that_contradict_each_other_are_told_in_their_own_words(
    taken: Taken, given: dict[str, str], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        taken(given)


@both
@pytest.mark.parametrize(
    "given",
    [
        {"token": TOKEN}, {"Token": TOKEN[:-4]}, {"token": "anything"}, {"tokenFile": TOKEN},
        {"tokenFile": f" {TOKEN}"}, {"namespace": TOKEN}, {"addresses": f"queue-1:7600,{TOKEN}"},
        {"caFile": TOKEN[:-20]}, {"tokn": TOKEN}, {"retryTimeoutMs": TOKEN},
    ],
)  # fmt: skip
def test_a_token_is_no_option_and_is_not_repeated_wherever_it_is_put(taken: Taken, given: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"write the token to a file .*, and give tokenFile") as caught:
        taken({"tls": "true", **given})
    assert SECRET[:8] not in str(caught.value)
    assert "anything" not in str(caught.value)


def test_a_plan_on_its_way_to_a_task_has_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text(TOKEN)
    plan = WritePlan(options=WriteOptions(credentials=Credentials(tls=True, token_file=str(file))))
    plan.options.credentials.check_files()
    sent = pickle.dumps(plan)
    assert SECRET.encode()[:8] not in sent
    assert SECRET[:8] not in repr(plan)
    assert pickle.loads(sent) == plan


# ---- files ----


def test_files_that_are_of_no_use_are_named_with_the_machine_and_never_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.issue("own"), authority.issue("other")
    paths = {name: str(tmp_path / name) for name in ("absent", "text", "empty", "binary", "directory")}
    for name, content in {"text": f"{TOKEN[:-1]}", "empty": "", "binary": "\xff\xfe" * 40}.items():
        Path(paths[name]).write_text(content, encoding="latin-1")
    Path(paths["directory"]).mkdir()
    for given, told in [
        (
            {"ca_file": paths["absent"]},
            "caFile '.*absent' cannot be read on .*No such.*or as a file of spark.files",
        ),
        ({"ca_file": paths["directory"]}, "caFile '.*directory' cannot be read"),
        ({"ca_file": paths["text"]}, "caFile: .*text is no usable PEM file"),
        ({"cert_file": own.cert_file, "key_file": other.key_file}, "certFile, keyFile: the key is not that of"),
        ({"cert_file": own.cert_file, "key_file": paths["absent"]}, "keyFile '.*absent' cannot be read"),
        ({"token_file": paths["absent"]}, "tokenFile '.*absent' cannot be read"),
        ({"token_file": paths["text"]}, "tokenFile .*text: the token has 66 characters"),
        ({"token_file": paths["empty"]}, "tokenFile .*empty: this is no token of foqs"),
        ({"token_file": paths["binary"]}, "tokenFile .*binary cannot be read: it is not text of a token"),
    ]:
        with pytest.raises(InvalidArgumentError, match=told) as caught:
            Credentials(tls=True, **given).check_files()  # type: ignore[arg-type]
        assert socket.gethostname() in caught.value.message
        assert SECRET[:8] not in caught.value.message
    Path(paths["text"]).write_text(TOKEN + "\n")
    Credentials(
        tls=True, ca_file=authority.ca_file, cert_file=own.cert_file, key_file=own.key_file, token_file=paths["text"]
    ).check_files()


def test_a_relative_name_is_one_of_the_working_directory_or_of_sparks_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkFiles

    here, copied = tmp_path / "here", tmp_path / "copied"
    for directory, names in ((here, ["both"]), (copied, ["both", "shipped"])):
        directory.mkdir()
        for name in names:
            (directory / name).touch()
    monkeypatch.chdir(here)
    assert located("shipped") == "shipped", "there is no session and no task"
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    assert located("shipped") == "shipped", "a worker without a directory"
    monkeypatch.setattr(SparkFiles, "_root_directory", str(copied))
    assert [located(name) for name in ("both", "shipped", "absent")] == ["both", str(copied / "shipped"), "absent"]
    assert located("/shipped") == "/shipped"
    assert Credentials(token_file="shipped").client_arguments()["token_file"] == str(copied / "shipped")


def test_a_name_stays_as_it_is_after_the_session_of_a_process_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.protocol import Py4JError
    from pyspark import SparkFiles

    def fail(_: object) -> str:
        raise Py4JError("SparkEnv.get() is null")

    monkeypatch.setattr(SparkFiles, "getRootDirectory", classmethod(fail))
    assert located("shipped") == "shipped"


def test_a_file_that_is_replaced_or_gone_or_there_again_is_noticed_once(tmp_path: Path) -> None:
    file, made = tmp_path / "t", tmp_path / "made"
    file.write_text("a")
    replacements = Replacements(Credentials(token_file=str(file)))
    assert not replacements.came()
    made.write_text("b")
    made.replace(file)
    assert [replacements.came(), replacements.came()] == [True, False]
    file.unlink()
    assert [replacements.came(), replacements.came()] == [True, False]
    file.write_text("c")
    assert [replacements.came(), replacements.came()] == [True, False]
    before = file.stat()
    file.write_text("d")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert replacements.came(), "the content was changed in place"


def test_errors_of_clients_are_told_in_the_words_of_options() -> None:
    told = in_options("give tls=True, tokens_without_tls=True or ca_file (not my_ca_file); TLS, tls and key_file_name")
    assert told == "give tls=true, tokensWithoutTls=true or caFile (not my_ca_file); TLS, tls and key_file_name"


# ---- a task whose credentials are refused ----


class _Refused:
    """Clients of a task, by the credentials of their making: those before `good_from` are refused."""

    made: list[_Refused]
    good_from: int

    def __init__(self, plan: WritePlan) -> None:
        self.number = len(self.made)
        self.made.append(self)
        self.is_open = True

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        await asyncio.sleep(0)
        if self.number < self.good_from:
            raise DENIED
        return EncodedResult(stored_count=len(items))

    async def __aenter__(self) -> _Refused:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.is_open = False


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> type[_Refused]:
    monkeypatch.setattr(_Refused, "made", [], raising=False)
    monkeypatch.setattr(_Refused, "good_from", 1, raising=False)
    monkeypatch.setattr(task_client, "TaskClient", _Refused)
    return _Refused


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "t"
    file.write_text(TOKEN)
    return file


def plan_of(file: Path) -> WritePlan:
    return WritePlan(options=WriteOptions(credentials=Credentials(tls=True, token_file=str(file))))


async def test_a_refusal_is_final_while_the_files_are_the_same(refused: type[_Refused], token_file: Path) -> None:
    async with RenewedClient(plan_of(token_file)) as client:
        with pytest.raises(PermissionDeniedError):
            await client.enqueue(EncodedItems(b"x", [0, 1]))
    assert [one.is_open for one in refused.made] == [False]


async def test_calls_that_are_refused_together_go_on_over_one_new_client(
    refused: type[_Refused], token_file: Path
) -> None:
    async with RenewedClient(plan_of(token_file)) as client:
        token_file.write_text(TOKEN + "\n")  # noqa: ASYNC240 - nobody waits for this loop
        results = await asyncio.gather(*[client.enqueue(EncodedItems(b"x", [0, 1])) for _ in range(4)])
        assert [result.stored_count for result in results] == [1] * 4
        assert [one.is_open for one in refused.made] == [True, True], "calls of the old one may be in flight"
    assert [one.is_open for one in refused.made] == [False, False]


async def test_a_file_that_is_replaced_without_end_does_not_keep_a_task(
    refused: type[_Refused], token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Refused, "good_from", 10 * REPLACEMENTS_MAX)
    monkeypatch.setattr(Replacements, "came", lambda _: True)
    async with RenewedClient(plan_of(token_file)) as client:
        with pytest.raises(PermissionDeniedError):
            await client.enqueue(EncodedItems(b"x", [0, 1]))
    assert len(refused.made) == REPLACEMENTS_MAX + 1
    assert not any(one.is_open for one in refused.made)


def test_a_task_on_a_machine_without_the_file_says_so_before_it_connects(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"tokenFile '.*t' cannot be read on"):
        RenewedClient(plan_of(tmp_path / "t"))


def test_a_read_takes_new_credentials_for_the_page_that_was_refused_and_no_others(
    token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    closed: list[int] = []

    class Pages:
        """The second client and those behind it are not refused."""

        def __init__(self, number: int) -> None:
            self.number = number

        def export_items(self, namespace: str, split: Any, after_key: int, page_items: int, **wanted: Any) -> Any:
            asked.append((self.number, after_key))
            if not self.number:
                raise PermissionDeniedError("give token_file")
            return "page"

        def close(self) -> None:
            closed.append(self.number)

    numbers = itertools.count()
    monkeypatch.setattr(reader, "_client", lambda options, deadline_ms: Pages(next(numbers)))
    options = ReadOptions(**REQUIRED, credentials=Credentials(tls=True, token_file=str(token_file)))
    split = ExportSplit(0, 0, 1)
    with reader.RenewedReader(options) as pages:
        with pytest.raises(PermissionDeniedError, match="give tokenFile"):
            pages.export_items(split, 7)
        token_file.write_text(TOKEN + "\n")
        assert [pages.export_items(split, 7), pages.export_items(split, 8)] == ["page", "page"]
    assert asked == [(0, 7), (0, 7), (1, 7), (1, 8)]
    assert closed == [0, 1]


# ---- jobs ----


@pytest.mark.parametrize("job", [enqueue.enqueue, export.export, redrive.redrive, capacity_report.capacity_report])
def test_every_job_that_calls_hosts_has_a_flag_for_each_option(job: Any) -> None:
    flags = {flag for parameter in job.params for flag in parameter.opts}
    assert {"--tls", "--ca-file", "--server-name", "--cert-file", "--key-file", "--token-file"} <= flags
    fields = {option.field for option in CREDENTIAL_OPTIONS.values()}
    assert fields <= {parameter.name for parameter in job.params}
    assert "--token" not in flags, "others see the arguments of a process"


def test_files_and_the_name_ask_for_tls_in_commands_and_become_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_TOKEN_FILE", "/t")
    monkeypatch.setenv("FOQS_CA_FILE", "/ca")
    arguments = ["--addresses", "h:1", "--namespace", "a", "--output", "/o", "--format", "csv"]
    given = export.export.make_context("export", arguments).params
    options = read_options_of(with_tls({name: given[name] for name in given if name not in ("output", "kind", "mode")}))
    found = parse_read_options({name: text for name, text in options.items() if name != "master"}).credentials
    assert found == Credentials(tls=True, ca_file="/ca", token_file="/t")
    taken = taken_credentials(given)
    assert taken == found
    assert "token_file" not in given
