"""Spark and a host that requires TLS and enforces access: what a job needs, what ends it, and what shows no secret."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from foqs.contract.permissions import OF_NAMESPACE, ROLES, Permission
from foqs.model import access_tokens
from loadtest.spark.faulty import told
from tests.support.protected_host import ProtectedHost, protected_host
from tests.support.spark_bits import documented_bits, documented_roles
from tests.support.spark_rows import keyed, load, numbered, numbers, save, stream
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database]
DOCS = Path(__file__).parents[2] / "docs/spark.md"
ROWS = 12_000
NAMESPACE = "shop"
TOKEN = access_tokens.new_token(bytes(range(access_tokens.RANDOM_BYTES)))


@pytest.fixture
def protected(
    meta_url: str, shard_urls: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProtectedHost]:
    """It knows a role of each single bit, by the name of the bit."""
    for bit in OF_NAMESPACE:
        monkeypatch.setitem(ROLES, str(bit.name).lower(), bit)  # type: ignore[arg-type]
    with protected_host(meta_url, shard_urls, tmp_path, NAMESPACE) as host:
        yield host


def write(spark: Any, address: str, options: dict[str, str], home: Path) -> None:
    save(keyed(numbered(spark, 20)), address, NAMESPACE, dedup="key", **options)


def write_stream(spark: Any, address: str, options: dict[str, str], home: Path) -> None:
    source = home / "source"
    if not source.exists():
        numbered(spark, 20).write.parquet(str(source))
    rows = keyed(spark.readStream.schema("topic string, payload string").parquet(str(source)))
    checkpoints = home / Path(options["tokenFile"]).name.removesuffix(".token")
    stream(rows, address, NAMESPACE, checkpoints, dedup="key", **options)


def read(spark: Any, address: str, options: dict[str, str], home: Path) -> None:
    assert load(spark, address, NAMESPACE, **options).count() >= 0


@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("`df.write`", write),
        pytest.param("`df.writeStream`", write_stream, marks=pytest.mark.slow),
        ("`spark.read`", read),
    ],
    ids=["write", "stream", "read"],
)
def test_the_bits_of_the_documents_are_enough_and_without_one_of_them_the_job_is_refused(
    spark: Any, protected: ProtectedHost, tmp_path: Path, what: str, act: Callable[..., None]
) -> None:
    needed = documented_bits()[what]
    for number, missing in enumerate((None, *needed)):
        held = needed if missing is None else needed & ~missing
        roles = " ".join(str(bit.name).lower() for bit in held)
        token_file = protected.principal(f"job-{number}", {NAMESPACE: roles})
        if missing is None:
            act(spark, protected.address, protected.options(token_file), tmp_path)
            continue
        with pytest.raises(PySparkException, match=f"job-{number} may not call .*: it lacks {missing.name}"):
            act(spark, protected.address, protected.options(token_file), tmp_path)


def held_job(spark: Any, host: ProtectedHost, token_file: Path, marks: Path, act: Callable[[], object]) -> set[str]:
    """Run a job, act while its two tasks wait in the middle of their rows, and return the numbers of all attempts."""
    marks.mkdir()
    acted: list[bool] = []

    def run() -> None:
        try:
            until_true(lambda: len(list(marks.glob("held-*"))) == 2)
            act()
            acted.append(True)
        finally:
            (marks / "go").touch()

    # The job itself is in the thread of the test: another one has another session of Spark, without the faulty writer.
    actor = threading.Thread(target=run, name="actor")
    actor.start()
    options = host.options(token_file) | {"faults": told(marks, hold=[0, 1]), "dedup": "key", "jobId": "load"}
    try:
        save(keyed(numbered(spark, ROWS)), host.address, NAMESPACE, "append", "foqs_faulty", **options)
    finally:
        actor.join()
        assert acted == [True]
    return attempts(marks)


def attempts(marks: Path) -> set[str]:
    return {path.name.split("-")[2] for path in marks.glob("begun-*")}


@pytest.mark.slow
def test_a_token_revoked_in_the_middle_fails_the_job_without_repeats_and_a_rerun_completes_it_exactly_once(
    spark: Any, protected: ProtectedHost, tmp_path: Path
) -> None:
    token_file = protected.principal("loader", {NAMESPACE: "producer"})
    marks, token = tmp_path / "marks", token_file.read_text().strip()
    refusal = r"the service refused the job: .*revoked.*the rest was not sent. Grant what is"
    with pytest.raises(PySparkException, match=refusal):
        held_job(spark, protected, token_file, marks, lambda: protected.revoke(token))
    assert attempts(marks) == {"0"}, "no task was repeated"
    with protected.client() as client:
        sent_count = sum(stats.ready for stats in client.topics(NAMESPACE))
        assert 0 < sent_count < ROWS, "it was in the middle"
        with pytest.raises(PySparkException, match="revoked"):
            write(spark, protected.address, protected.options(token_file), tmp_path)
        token_file.write_text(protected.token("loader"))
        save(
            keyed(numbered(spark, ROWS)), protected.address, NAMESPACE,
            dedup="key", jobId="load", **protected.options(token_file),
        )  # fmt: skip
        assert numbers(client, NAMESPACE) == Counter(range(ROWS))


def test_a_token_that_is_replaced_in_its_file_in_the_middle_interrupts_nothing(
    spark: Any, protected: ProtectedHost, tmp_path: Path
) -> None:
    token_file = protected.principal("loader", {NAMESPACE: "producer"})
    old = token_file.read_text().strip()

    def replace() -> None:
        token_file.write_text(protected.token("loader"))
        protected.revoke(old)

    assert held_job(spark, protected, token_file, tmp_path / "marks", replace) == {"0"}, "no task was repeated"
    with protected.client() as client:
        assert numbers(client, NAMESPACE) == Counter(range(ROWS))


def test_files_of_spark_files_are_found_by_their_names_alone(
    spark: Any, protected: ProtectedHost, tmp_path: Path
) -> None:
    token_file = protected.principal("loader", {NAMESPACE: "producer reader"})
    for path in (token_file, protected.authority.ca_file):
        spark.sparkContext.addFile(str(path))
    options = {"tls": "true", "caFile": Path(protected.authority.ca_file).name, "tokenFile": token_file.name}
    write(spark, protected.address, options, tmp_path)
    assert load(spark, protected.address, NAMESPACE, **options).count() == 20


def test_a_certificate_is_an_identity_as_well(spark: Any, protected: ProtectedHost, tmp_path: Path) -> None:
    own = protected.authority.issue("loader", uris=["foqs://prod/loader"])
    protected.principal("loader", {NAMESPACE: "producer reader"})
    with protected.admin() as admin:
        admin.add_certificate("loader", "foqs://prod/loader")
    options = {"tls": "true", "caFile": protected.authority.ca_file, "certFile": own.cert_file, "keyFile": own.key_file}
    write(spark, protected.address, options, tmp_path)
    assert load(spark, protected.address, NAMESPACE, **options).count() == 20


def test_a_host_that_is_not_trusted_and_one_that_wants_tls_are_told_in_the_words_of_the_options(
    spark: Any, protected: ProtectedHost, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=r"is not trusted by the CAs of this system .*: give caFile"):
        write(spark, protected.address, {"tls": "true"}, tmp_path)
    with pytest.raises(PySparkException, match=r"connect with TLS, .* \(caFile, serverName\)"):
        read(spark, protected.address, {}, tmp_path)


# ---- secrets ----


def shown_by_spark(spark: Any) -> str:
    """All that the SQL tab of Spark's UI and its event log have of the queries so far."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    found = []
    executions = store.executionsList()
    for at in range(executions.size()):
        execution = executions.apply(at)
        metrics = store.planGraph(execution.executionId()).makeDotFile(store.executionMetrics(execution.executionId()))
        found += [execution.description(), execution.details(), execution.physicalPlanDescription(), metrics]
        found.append(execution.modifiedConfigs().toString())
    return "\n".join(found)


def test_spark_shows_no_token_of_a_job_and_none_of_one_that_gives_it_as_an_option(
    spark: Any, protected: ProtectedHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    token_file = protected.principal("loader", {NAMESPACE: "producer reader"})
    token = token_file.read_text().strip()
    write(spark, protected.address, protected.options(token_file), tmp_path)
    frame = load(spark, protected.address, NAMESPACE, **protected.options(token_file))
    assert frame.count() == 20
    texts = [frame._jdf.queryExecution().toString(), repr(frame)]
    for given in ({"token": token}, {"TOKEN": token}, {"tokenFile": token}, {"topicPrefix": token}, {"topic": token}):
        for act in (write, read):
            with pytest.raises(PySparkException, match=r"write the token to a file .* and give tokenFile") as caught:
                act(spark, protected.address, {"tls": "true", **given}, tmp_path)
            texts.append(str(caught.value))
    view = f"VIEW {{}} USING foqs OPTIONS (addresses '{protected.address}', namespace '{NAMESPACE}', tls 'true', "
    view = f"CREATE OR REPLACE TEMPORARY {view}caFile '{protected.authority.ca_file}', {{}})"
    with pytest.raises(PySparkException, match="token is no option") as caught:
        spark.sql(view.format("refused", f"token '{token}'"))
    texts.append(str(caught.value))
    spark.sql(view.format("items", f"tokenFile '{token_file}'"))
    assert spark.sql("SELECT count(*) FROM items").collect() == [(20,)]
    frame.explain("extended")
    told_by_spark = shown_by_spark(spark)
    captured = capfd.readouterr()
    assert f"addresses -> {protected.address}" in told_by_spark, "it shows the options of views"
    assert "tokenFile -> *********(redacted)" in told_by_spark
    assert secret_in(token, *texts, told_by_spark, captured.out, captured.err) == []


def secret_in(token: str, *texts: str) -> list[str]:
    """The texts that have a part of the secret of the token."""
    secret = token.removeprefix(access_tokens.TOKEN_PREFIX).partition("_")[2]
    return [text for text in texts if secret[:12] in text or secret[-12:] in text]


# ---- the documents ----


def test_the_example_of_the_documents_writes_and_reads(spark: Any, protected: ProtectedHost, tmp_path: Path) -> None:
    example = re.search(r"^## Protected hosts$.*?^```python$(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    token_file = protected.principal("orders", {NAMESPACE: "producer reader"})
    code = example[1].replace("queue-1.example:7600", protected.address)
    code = code.replace("/etc/foqs/ca.pem", protected.authority.ca_file).replace(
        "/run/foqs/orders.token", str(token_file)
    )
    for replaced in ("example:", "/etc/foqs", "/run/foqs"):
        assert replaced not in code
    orders = spark.range(10).selectExpr("id AS order_id", "id * 2 AS amount")
    exec(code, {"spark": spark, "orders": orders})
    assert load(spark, protected.address, NAMESPACE, **protected.options(token_file)).count() == 10


def test_every_role_of_the_documents_has_the_bits_beside_it() -> None:
    for what, (bits, role) in documented_roles().items():
        if role is not None:
            assert bits & ~ROLES[role] == Permission(0), what
